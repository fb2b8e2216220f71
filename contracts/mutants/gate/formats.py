"""Reports that let through what a stack says."""

from contracts.court.court import Court
from contracts.mutants._support.broken import broken


@broken(Court, "report", "GATE-16a[junit]: junit holds characters that do not print: U+001B")
def colours_in_j_unit(report, self, run, today, form):
    """Control characters reach the XML file, which no parser reads then."""
    return report(self, run, today, form).replace("\\x1b", "\x1b")


@broken(Court, "report", "GATE-16a[json]: json holds characters that do not print: U+D800")
def half_a_character_in_json(report, self, run, today, form):
    """A lone surrogate reaches the text, which cannot be encoded then."""
    return report(self, run, today, form).replace("\\\\ud800", "\ud800")


@broken(Court, "report", "GATE-16a[markdown]: markdown has lines that the stack wrote: ['## CONFORMANT")
def words_of_several_lines_in_markdown(report, self, run, today, form):
    """Line breaks of the stack are kept in the summary, so that its words become headings."""
    return report(self, run, today, form).replace(" / ", "\n")


@broken(Court, "report", "GATE-16a[html]: html holds a script of the stack")
def words_are_markup(report, self, run, today, form):
    """The page takes a stack's words for HTML."""
    return report(self, run, today, form).replace("&lt;", "<").replace("&gt;", ">")


@broken(Court, "report", "GATE-16a[terminal]: terminal has lines that the stack wrote: [")
def commands_reach_the_runner(report, self, run, today, form):
    """A line of a stack's words is a command to GitHub's runner."""
    return report(self, run, today, form).replace("\\::", "::")


@broken(Court, "report", "GATE-16b[words-markdown]: characters for 2000000 of a stack")
def whole_words(report, self, run, today, form):
    """Prints all that a stack says."""
    return report(self, run, today, form) + "".join(result.words for result in run.results)


@broken(Court, "report", "GATE-16b[words-html]: html does not say what was cut")
def cuts_in_silence(report, self, run, today, form):
    """Cuts without a word, so that a reader takes the rest for all of it."""
    return report(self, run, today, form).replace("characters, cut", "")


@broken(Court, "report", "GATE-16c[html]: the html holds an option of the command, a token by its form")
def quotes_the_stack(report, self, run, today, form):
    """Quotes an error of the stack as it was raised."""
    quoted = "".join(f"<p>{result.words}</p>" for result in run.results)
    return report(self, run, today, form) + quoted


@broken(Court, "write_run", "GATE-16c[record]: the record holds an option of the command")
def records_the_command(write_run, self, run, today):
    """Records how the run was started, word by word."""
    return write_run(self, run, today).replace("--password [redacted]", run.header.command[-1])
