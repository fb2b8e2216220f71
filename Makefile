# Two commands need nothing but Python >= 3.11 with venv, bash and (for Megatron-Core 0.19) g++:
#   make gate    judge a stack, quickly        make test    test the suite
# make itself ends with 2 whatever went wrong; the code that rankproof gave is in the last lines.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help gate gate-all proof release test lint snapshots coverage picture megatron megatron-if-possible kernels titan transformers deepspeed gpu torch machines operators fuzz mutate site clean

# The first interpreter that runs, is new enough and can make an environment; a pyenv shim may exist and not run.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# `make gate` and `make gate-all` differ in these; yours hold for either. RANKS_PROFILE is what several ranks judge of a
# stack that answers anything about them; RANKS=8 with RANKS_PROFILE=dist is all of it.
gate: STACK ?= reference
gate: PROFILE ?= quick
gate: RANKS_PROFILE ?= quick4
# Every version that was tried, where nobody says which. Of each stack the first goes by the stack's name alone; one file
# of deviations serves all versions.
gate-all: MEGATRON = 0.19.2 0.18.1 0.17.1 0.16.1
gate-all: TRANSFORMERS = 5.23.0 5.10.4 4.57.6
gate-all: STACK ?= reference $(call versions,megatron,$(MEGATRON)) megatron-distributed-optimizer $(call versions,torchtitan,$(TITAN)) \
	$(call versions,transformers,$(TRANSFORMERS))
gate-all: PROFILE ?= launch,machine,numeric
gate-all: RANKS_PROFILE ?= dist4
RANKS ?= 4
# Processes that share what one process judges.
JOBS ?= $(shell nproc 2>/dev/null || echo 1)
MEGATRON ?= 0.19.2 0.16.1
TITAN ?= 0.3.0 0.2.2
TRANSFORMERS ?= 5.23.0
DEEPSPEED ?= 0.19.8
FROM ?=
REPOSITORY ?=
COVERED ?= megatron==0.19.2 torchtitan==0.3.0 transformers==5.23.0
versions = $(1) $(patsubst %,$(1)==%,$(filter-out $(firstword $(2)),$(2)))
# Of the declared range, beside the one in constraints.txt.
TORCH ?= 2.11.0 2.12.1
MACHINES ?=
SEED ?= 1
BIN := .venv/bin
# By its own name in a recipe make would run all of that recipe even under -n.
SELF := $(MAKE) --no-print-directory
# Hundreds of interpreters start here; each would compile the suite's modules anew.
unexport PYTHONDONTWRITEBYTECODE
READY := .venv/.ready

help:  ## these lines, with the times of docs/measurements.md
	@awk -F ' [|] ' '
	  FNR == NR { gsub("`", "", $$2); if (match($$3, /[0-9.]+ (h|min|s)( [0-9.]+ s)?/)) took[$$2] = substr($$3, RSTART, RLENGTH); next }
	  /^[a-z-]+:.*## / { command = "make " $$0; sub(/:.*/, "", command); sub(/^.*## /, "") }
	  /^## / { command = $$0; gsub(/^## |:.*/, "", command); sub(/^[^:]*: /, "") }
	  command { printf length(command) < 18 ? "%-18s%s%s\n" : "%s\n                  %s%s\n", command, $$0, \
	    command in took ? " [" took[command] "]" : ""; command = "" }
	' docs/measurements.md $(MAKEFILE_LIST)

# What pytest runs, in an environment that has the package and torch; the development tools bring more of it:
## pytest -m unit: every contract of one process put to the reference, numbers included, and the suite's own tests
## pytest -m gpu: the contracts of one GPU; without one it ends with an error
## torchrun --nproc-per-node 4 -m pytest -m dist: every contract of several ranks; 8 ranks ask more layouts

gate: $(READY)  ## a quick verdict on STACK=reference, or on any other: one process, then RANKS=4
gate-all: $(READY) megatron-if-possible  ## test the gate, then judge all stacks and versions by everything that runs here
gate gate-all:
	@export PATH="$(CURDIR)/$(BIN):$$PATH" MEGATRON="$(MEGATRON)" TITAN="$(TITAN)" TRANSFORMERS="$(TRANSFORMERS)"
	exec rankproof gate $(if $(filter gate-all,$@),--all) $(STACK:%=--stack '%') --profile '$(PROFILE)' \
	  --ranks-profile '$(RANKS_PROFILE)' --ranks $(RANKS) --jobs $(JOBS)

# A release and a cache of CI carry it beside the content that it is of; git ignores it.
proof: $(READY)  ## put every mutant before the law, and 40 drawn changes, and leave the proof in contracts/proof
	@$(BIN)/rankproof selftest --once --jobs $(JOBS) --report contracts/proof
	$(BIN)/rankproof selftest --operators 40 --likely --seed $(SEED)

# Nothing is published: that is a step of whoever may.
release: $(READY)  ## wheel, sdist, notes, SBOM and checksums of VERSION=x.y.z in dist/, of a clean tree tagged vVERSION; REPOSITORY=https://…
	@PYTHON=$(BIN)/python JOBS=$(JOBS) REPOSITORY="$(REPOSITORY)" .ci/release "$(VERSION)"

test: $(READY) lint  ## the project's own tests, after lint; those of several ranks first, on RANKS=4
	@export OMP_NUM_THREADS=1  # a second thread in each of several processes only waits
	$(BIN)/torchrun --standalone --nproc-per-node $(RANKS) --max-restarts 3 \
	  -m pytest -q -m "dist and not slow" tests_dist
	$(BIN)/pytest -m "unit or slow or megatron or titan or transformers or kernels or registry or torchrun" -n 2 --dist worksteal \
	  --durations=20

lint: $(READY)  ## ruff, its formatter, mypy --strict
	@$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

snapshots: $(READY)  ## write snapshots/, docs/schema/ and the generated pages anew; read the diff before you commit it
	@$(BIN)/python -m contracts.court.record docs/schema/run-1.json
	$(BIN)/python -m contracts.stacks.reference.receipts.receipt docs/schema/receipt-1.json
	$(BIN)/python -m contracts.harness.question_pages docs/questions.md
	$(BIN)/python -m contracts.harness.convention_page docs/conventions.md
	$(BIN)/python -m contracts.court.promises docs/promises.md
	$(BIN)/python -m benchmarks.asked --cases snapshots/asked_of_numbers.md
	$(BIN)/pytest -m unit -n 0 --snapshot-update \
	  tests_unit/test_law_table.py tests_unit/test_snapshots.py tests_unit/test_cli.py tests_unit/memory/test_budget.py

# Each stack is judged twice, by one process and on 4 ranks, in the interpreter that has it; a quiet machine takes half an hour.
# Behind make gate-all nothing need be judged again: FROM=reports.
coverage: $(READY)  ## write how much each shipped stack answers: snapshots/coverage/STACK.txt
	@mkdir -p snapshots/coverage
	for stack in $(COVERED); do
	  gate=$$($(BIN)/python -m contracts.harness.environments "$$stack")
	  file=snapshots/coverage/$${stack/==/-}.txt
	  if [ -n "$(FROM)" ]; then
	    one=$(FROM)/$$stack
	    [ -d "$$one" ] || one=$(FROM)/$${stack%%==*}
	    many=$$one-ranks
	  else
	    folder=reports/coverage-$$stack deviations=docs/deviations/$${stack%%==*}.toml
	    one=$$folder-numeric many=$$folder-dist4
	    for profile in numeric "dist4 --ranks 4"; do  # what it violates does not end this; a run that ended early does
	      rm -rf "$$folder-$${profile%% *}"
	      "$$gate" check --stack "$$stack" --profile $$profile --deviations "$$deviations" \
	        --report "$$folder-$${profile%% *}" > "$$folder.txt" || tail -n 1 "$$folder.txt" >&2
	    done
	  fi
	  { "$$gate" coverage --record "$$one" --profile numeric; echo; "$$gate" coverage --record "$$many"; } > "$$file.part"
	  mv "$$file.part" "$$file"
	  grep '^coverage' "$$file"
	done

# The command's name and the machine's kernel are not the report's: the picture has them as a reader would.
picture: $(READY)  ## draw docs/images/report.png, the report of README's example; needs chromium
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT
	cp docs/examples/whole_periods/ours.py "$$folder"
	(cd "$$folder" && "$(CURDIR)/$(BIN)/rankproof" check --stack ours:Ours --profile PAT-01 > /dev/null) || [ $$? = 1 ]
	sed -i -E 's|[^ >"]*/bin/rankproof|rankproof|g; s|Linux-[^ <]*|Linux|' "$$folder/reports/last/report.html"
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1100,640 \
	  --screenshot="$(CURDIR)/docs/images/report.png" "file://$$folder/reports/last/report.html" 2> /dev/null

megatron: ENV = megatron $(MEGATRON)  ## environments with Megatron-Core 0.19.2 and 0.16.1: .venv-megatron-VERSION
titan: ENV = torchtitan $(TITAN)  ## environments with torchtitan 0.3.0 and 0.2.2 and the suite: .venv-torchtitan-VERSION
transformers: ENV = transformers $(TRANSFORMERS)  ## environments with transformers 5.23.0, accelerate and the suite: .venv-transformers-VERSION
deepspeed: ENV = deepspeed $(DEEPSPEED)  ## the environment in which scripts of DeepSpeed are observed: .venv-deepspeed-VERSION (two minutes)
kernels: ENV = mamba-ssm 2.3.2.post1  ## the environment in which mamba-ssm's own kernels run on a CPU: .venv-kernels (a minute and a half)
torch: ENV = torch $(TORCH)  ## environments with other versions of torch, for make machines: .venv-torch-VERSION (5 GB each)
megatron titan transformers deepspeed kernels torch:
	@$(need-python)
	exec $(PYTHON) .ci/environment $(ENV)

# Without Megatron-Core the gate still runs; what only its parser can answer is then "not run", and exit code 3 says so.
megatron-if-possible:
	@$(SELF) megatron MEGATRON="$(MEGATRON)" \
	  || echo "not every Megatron-Core could be installed: what only a missing one answers is not run," \
	    "and that verdict incomplete" >&2

# Installs nothing: where torch with CUDA is another environment's, BIN=DIR/bin names that; .ci/gpu-env makes one.
gpu:  ## the GPU tier, its counterexamples, the benchmarks and a receipt, into reports/gpu; one CUDA device, ten minutes
	@$(BIN)/python -m benchmarks.gpu --out reports/gpu $(GPU)

machines: $(READY)  ## the reference on variations of this machine; MACHINES=--quick: a few
	@$(BIN)/python -m benchmarks.machines $(MACHINES)

# For a night: what is in the journals of reports/ is not tried again as long as the source is the same.
operators: $(READY)  ## 400 changes drawn over the reference's source, then 300 correct stacks; SEED=1
	@$(BIN)/rankproof selftest --operators 400 --seed $(SEED) --report reports/operators || failed=1
	$(BIN)/python -m benchmarks.false_alarms --count 300 || failed=1
	$(BIN)/rankproof coverage --pairs > reports/pairs.txt
	head -n 2 reports/pairs.txt
	exit $${failed:-0}

fuzz: $(READY)  ## 100,000 damaged inputs for every reader of what others wrote, and long ones
	@$(BIN)/pytest -q -m fuzz -n auto tests_unit/test_readers.py

mutate: $(READY)  ## 40 mutants each of the pure code of the court and of the spec, by cosmic-ray, against its tests; SEED=1
	test -x .venv-mutate/bin/cosmic-ray || { $(BIN)/python -m venv .venv-mutate && .venv-mutate/bin/pip install -q cosmic-ray==8.7.0; }
	for of in court spec; do
	  $(BIN)/python -m benchmarks.mutate --tool .venv-mutate/bin/cosmic-ray --of $$of --count 40 --seed $(SEED) || failed=1
	done
	exit $${failed:-0}

# Not part of the environment of development: website/requirements.txt has its pins.
site: .venv-site/.ready  ## the site into build/site, with the pages that are drawn from stored records (half a minute)
	@NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict --quiet
	echo "build/site/index.html; read it by $(BIN)/python -m http.server -d build/site"

.venv-site/.ready: website/requirements.txt
	@$(need-python)
	$(PYTHON) -m venv --clear .venv-site
	.ci/quietly venv-site .venv-site/bin/python -m pip install --disable-pip-version-check --no-deps -r $<
	touch $@

clean:  ## remove everything that make made
	rm -rf .venv .venv-mutate .venv-site .venv-megatron-* .venv-torchtitan-* .venv-transformers-* .venv-deepspeed-* .venv-torch-* .venv-kernels reports contracts/proof build *.egg-info .hypothesis .pytest_cache .mypy_cache .ruff_cache

define need-python
if [ -z "$(PYTHON)" ]; then
  echo "no Python >= 3.11 with venv and pip was found (Debian: apt-get install python3 python3-venv);" >&2
  echo "name one with PYTHON=/path/to/python" >&2
  exit 2
fi
endef

# Each file by its hash (.ci/lock writes the list), and no isolated build, which would take others. Torch by its pin:
# which of its builds is taken depends on the machine.
$(READY): pyproject.toml constraints.txt .ci/locks/dev.txt
	@$(need-python)
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	echo "installing rankproof and its development tools into .venv"
	install="$(BIN)/python -m pip --disable-pip-version-check install"
	.ci/quietly venv $$install --require-hashes --no-deps -r .ci/locks/dev.txt
	PIP_CONSTRAINT=constraints.txt .ci/quietly venv $$install torch
	.ci/quietly venv $$install --no-deps --no-build-isolation -e .
	touch $@
