"""Reports that let through what a stack says."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.court.court import Court
from contracts.spec.records import Form, Run


@mutant(of="GATE-16a", case="junit", says="junit holds characters that do not print: U+001B")
class ColoursInJUnit(Court):
    """Control characters reach the XML file, which no parser reads then."""

    def report(self, run: Run, today: str, form: Form) -> str:
        return super().report(run, today, form).replace("\\x1b", "\x1b")


@mutant(of="GATE-16a", case="json", says="json holds characters that do not print: U+D800")
class HalfACharacterInJson(Court):
    """A lone surrogate reaches the text, which cannot be encoded then."""

    def report(self, run: Run, today: str, form: Form) -> str:
        return super().report(run, today, form).replace("\\\\ud800", "\ud800")


@mutant(of="GATE-16a", case="markdown", says="markdown has lines that the stack wrote: ['## CONFORMANT")
class WordsOfSeveralLinesInMarkdown(Court):
    """Line breaks of the stack are kept in the summary, so that its words become headings."""

    def report(self, run: Run, today: str, form: Form) -> str:
        return super().report(run, today, form).replace(" / ", "\n")


@mutant(of="GATE-16a", case="html", says="html holds a script of the stack")
class WordsAreMarkup(Court):
    """The page takes a stack's words for HTML."""

    def report(self, run: Run, today: str, form: Form) -> str:
        return super().report(run, today, form).replace("&lt;", "<").replace("&gt;", ">")


@mutant(of="GATE-16a", case="terminal", says="terminal has lines that the stack wrote: [")
class CommandsReachTheRunner(Court):
    """A line of a stack's words is a command to GitHub's runner."""

    def report(self, run: Run, today: str, form: Form) -> str:
        return super().report(run, today, form).replace("\\::", "::")


@mutant(of="GATE-16b", case="words-markdown", says="characters for 2000000 of a stack")
class WholeWords(Court):
    """Prints all that a stack says."""

    def report(self, run: Run, today: str, form: Form) -> str:
        return super().report(run, today, form) + "".join(result.words for result in run.results)


@mutant(of="GATE-16b", case="words-html", says="html does not say what was cut")
class CutsInSilence(Court):
    """Cuts without a word, so that a reader takes the rest for all of it."""

    def report(self, run: Run, today: str, form: Form) -> str:
        return super().report(run, today, form).replace("characters, cut", "")


@mutant(of="GATE-16c", case="html", says="the html holds an option of the command, a token by its form")
class QuotesTheStack(Court):
    """Quotes an error of the stack as it was raised."""

    def report(self, run: Run, today: str, form: Form) -> str:
        quoted = "".join(f"<p>{result.words}</p>" for result in run.results)
        return super().report(run, today, form) + quoted


@mutant(of="GATE-16c", case="record", says="the record holds an option of the command")
class RecordsTheCommand(Court):
    """Records how the run was started, word by word."""

    def write_run(self, run: Run, today: str) -> str:
        return super().write_run(run, today).replace("--password [redacted]", run.header.command[-1])
