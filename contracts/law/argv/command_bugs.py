"""Stacks that write the wrong command: sizes forgotten, modes mixed up, words split, a launcher started eight times."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import Data, Degrees, Lane, Launch, Recipe, Refused
from contracts.stacks.reference.stack import Reference


def _saying(launch: Launch, flag: str, *values: str) -> Launch:
    """The launch with a flag's value replaced, or the flag appended."""
    argv = list(launch.argv)
    if flag in argv and values:
        argv[argv.index(flag) + 1] = values[0]
        return replace(launch, argv=tuple(argv))
    return replace(launch, argv=(*argv, flag, *values))


def _without(launch: Launch, flag: str, values: int = 0) -> Launch:
    if flag not in launch.argv:
        return launch
    at = launch.argv.index(flag)
    return replace(launch, argv=(*launch.argv[:at], *launch.argv[at + 1 + values :]))


@broken(Reference, "launch", "ARGV-01[fsdp2-tp2-ep2]: is '--run=run', and '--run=root-run' in another shell")
def names_the_run_after_the_user(launch, self, recipe, lane):
    """Puts the operator's name into the run name, so no two people can reproduce one launch."""
    user = lane.inherited.get("USER")
    return launch(self, recipe, replace(lane, run=f"{user}-{lane.run}") if user else lane)


@broken(Reference, "launch", "ARGV-01[megatron-native]: is None, and '/root/.triton' elsewhere", bugs=("PRV-16",))
def caches_under_home(former, self, recipe, lane):
    """Derives a cache path from HOME, so another machine has another environment, and root's volume is small."""
    launch = former(self, recipe, lane)
    home = lane.inherited.get("HOME")
    return replace(launch, env={**launch.env, "TRITON_CACHE_DIR": f"{home}/.triton"}) if home else launch


@broken(Reference, "launch", "ARGV-01[megatron-two-nodes]: words, and +2 in another shell")
def logs_by_the_width_of_the_terminal(former, self, recipe, lane):
    """Adds a flag when it is started from a terminal, so the argv depends on where it runs."""
    launch = former(self, recipe, lane)
    return _saying(launch, "--log-interval", "1") if "COLUMNS" in lane.inherited else launch


@broken(Reference, "launch", "ARGV-01c[latent]: --q-lora-rank is 224, expected 160")
def exchanges_the_ranks_of_latents(former, self, recipe, lane):
    """Fills in the rank of keys for that of queries, and the other way round. Presets give both the same."""
    launch, mla = former(self, recipe, lane), recipe.mla
    if mla is None:
        return launch
    return _saying(_saying(launch, "--q-lora-rank", str(mla.kv_lora)), "--kv-lora-rank", str(mla.q_lora))


@broken(Reference, "launch", "ARGV-01c[zeros]: --clip-grad is 1.0, expected 0")
def leaves_out_what_is_0(former, self, recipe, lane):
    """A number that is 0 is taken for one that nobody gave, and the launcher has a default of its own."""
    launch = former(self, recipe, lane)
    words = [*launch.argv]
    for flag in ("--clip-grad", "--weight-decay"):
        if flag in words and float(words[words.index(flag) + 1]) == 0:
            at = words.index(flag)
            del words[at : at + 2]
    return replace(launch, argv=tuple(words))


@broken(Reference, "launch", "ARGV-01c[groups]: --moe-router-num-groups is 2, expected 12")
def exchanges_groups_and_choice(former, self, recipe, lane):
    """How many groups there are stands where it is asked how many are chosen, and the other way round."""
    launch, moe = former(self, recipe, lane), recipe.moe
    if moe is None or moe.groups is None:
        return launch
    number, chosen = map(str, moe.groups)
    return _saying(_saying(launch, "--moe-router-num-groups", chosen), "--moe-router-group-topk", number)


@broken(
    Reference,
    "launch",
    "ARGV-01c[author]: --adam-beta1 is 0.93, expected 0.87",
    "ARGV-01c[grouped]: --adam-beta1 is 0.93, expected 0.87",
)
def exchanges_the_betas(former, self, recipe, lane):
    """Unpacks a pair of betas in the wrong order."""
    launch, optim = former(self, recipe, lane), recipe.optim
    return _saying(_saying(launch, "--adam-beta1", str(optim.beta2)), "--adam-beta2", str(optim.beta1))


@broken(Reference, "launch", "ARGV-01c[rising-decay]: --start-weight-decay is 0.11, expected 0.07")
def exchanges_the_ends_of_the_decay(former, self, recipe, lane):
    """The decay falls from its last value to its first."""
    launch, optim = former(self, recipe, lane), recipe.optim
    ends = _saying(launch, "--start-weight-decay", str(optim.end_weight_decay))
    return _saying(ends, "--end-weight-decay", str(optim.weight_decay))


@broken(Reference, "launch", "ARGV-01c[grouped]: --lr-warmup-iters is 5760, expected 30")
def warms_up_in_sequences(launch, self, recipe, lane):
    """Counts the warm-up in sequences in the flag that counts iterations."""
    return _saying(launch(self, recipe, lane), "--lr-warmup-iters", str(recipe.optim.warmup * recipe.batch.total))


@broken(Reference, "launch", "ARGV-01c[author]: --moe-aux-loss-coeff is 0.0001, expected 0.0003")
def weighs_balance_by_the_choice(former, self, recipe, lane):
    """Divides the coefficient of the balance loss by the experts of a token, for a launcher whose f sums to 1."""
    launch, moe = former(self, recipe, lane), recipe.moe
    return launch if moe is None else _saying(launch, "--moe-aux-loss-coeff", f"{moe.aux_loss / moe.top_k:.6g}")


@broken(Reference, "launch", "ARGV-01a[nemo-native]: --rotary-base is missing, expected 500000", bugs=("ROP-20",))
def leaves_theta_to_the_default(launch, self, recipe, lane):
    """Emits rotary embeddings without their base: Megatron's 10000 is near enough to train and far enough to differ."""
    return _without(launch(self, recipe, lane), "--rotary-base", 1)


@broken(Reference, "launch", "ARGV-01a[author-dp]: --moe-ffn-hidden-size is '18944', expected '896'")
def gives_experts_the_dense_size(launch, self, recipe, lane):
    """Uses one FFN size for both: sixteen experts of the dense width."""
    return _saying(launch(self, recipe, lane), "--moe-ffn-hidden-size", str(recipe.ffn_hidden))


@broken(Reference, "launch", "ARGV-01a[author-dp]: --hybrid-layer-pattern is", bugs=("HYB-08",))
def sends_recurrence_to_attention(former, self, recipe, lane):
    """The launcher has a second translation table, which maps R to attention."""
    launch = former(self, recipe, lane)
    pattern = launch.argv[launch.argv.index("--hybrid-layer-pattern") + 1]
    return _saying(launch, "--hybrid-layer-pattern", pattern.replace("MM", "M*"))


@broken(Reference, "launch", "ARGV-03[author-fp8]: --lr appears 2 times")
def appends_where_it_should_replace(former, self, recipe, lane):
    """Derives a recipe by appending to the base recipe's argv, and relies on the last of two flags winning."""
    launch = former(self, recipe, lane)
    return replace(launch, argv=(*launch.argv, "--lr", "0.0001"))


@broken(Reference, "launch", "ARGV-03[mla-mtp-pp2]: --multi-latent-attention and --group-query-attention contradict")
def keeps_groups_under_latent_attention(former, self, recipe, lane):
    """Adds MLA next to the group-query flags instead of replacing them."""
    launch = former(self, recipe, lane)
    return launch if recipe.mla is None else _saying(launch, "--group-query-attention")


@broken(Reference, "launch", "ARGV-03[native-moe-alone]: --mtp-loss-scaling-factor belongs to a feature that is off")
def spells_out_every_default(former, self, recipe, lane):
    """Writes the defaults of features that are off, so a log reads as if they were on."""
    launch = former(self, recipe, lane)
    return _saying(launch, "--mtp-loss-scaling-factor", "0.1") if recipe.mtp is None else launch


@broken(Reference, "launch", "ARGV-04[native]: --num-experts is missing, E is present")
def forgets_the_experts_of_e(launch, self, recipe, lane):
    """Keeps the E in the pattern and the sizes of the experts, and loses the number of experts."""
    return _without(launch(self, recipe, lane), "--num-experts", 1)


@broken(Reference, "launch", "ARGV-04[without-experts]: the pattern has an E, expected none", bugs=("HYB-08",))
def keeps_the_letter_without_experts(former, self, recipe, lane):
    """Translates E letter for letter, with experts or without."""
    launch = former(self, recipe, lane)
    pattern = launch.argv[launch.argv.index("--hybrid-layer-pattern") + 1]
    return _saying(launch, "--hybrid-layer-pattern", pattern.replace("-", "E"))


@broken(Reference, "launch", "ARGV-04a[attention-and-mamba]: --num-experts is emitted, but no block of AMM is an E")
def carries_experts_nobody_builds(launch, self, recipe, lane):
    """Emits expert flags because the recipe has experts, without checking that a block uses them."""
    if recipe.moe is None or "E" in recipe.pattern:
        return launch(self, recipe, lane)
    bare = launch(self, replace(recipe, moe=None, degrees=Degrees()), lane)
    return _saying(bare, "--num-experts", str(recipe.moe.experts))


@broken(Reference, "launch", "ARGV-05[author]: author_dp runs tp 2, expected 1", bugs=("PRV-04",))
def runs_both_modes_natively(launch, self, recipe, lane):
    """Uses one nickname for two lanes: the author lane starts with the native lane's TP 2."""
    return launch(self, recipe, replace(lane, mode="nemo_native"))


@broken(Reference, "launch", "ARGV-05[native-pp2]: --sequence-parallel is missing, nemo_native wants it on")
def drops_sequence_parallel_under_pp(former, self, recipe, lane):
    """Reports TP 2 with sequence parallelism and omits the switch where there is a pipeline."""
    launch = former(self, recipe, lane)
    return launch if launch.degrees.pp == 1 else _without(launch, "--sequence-parallel")


@broken(Reference, "launch", "ARGV-05[recipe-asks-for-more]: a legal input was refused")
def lets_the_recipe_outvote_the_mode(launch, self, recipe, lane):
    """Lets the recipe's TP override the mode's, and then finds that the two contradict each other."""
    asked = recipe.degrees if recipe.degrees.tp > 1 and lane.degrees is None else lane.degrees
    return launch(self, recipe, replace(lane, degrees=asked))


@broken(Reference, "launch", "ARGV-05a[native-at-tp1]: was accepted, expected a refusal")
def mends_the_degrees_in_silence(launch, self, recipe, lane):
    """Silently replaces degrees that contradict the mode with the mode's own."""
    try:
        return launch(self, recipe, lane)
    except Refused as refused:
        if "degrees" not in refused.fields:
            raise
    return launch(self, recipe, replace(lane, degrees=None))


@broken(Reference, "launch", "ARGV-06[data-0]: '/data/two words' is 0 words of the command, expected 1")
def splits_at_blanks(former, self, recipe, lane):
    """Keeps the argv as one text and splits it at blanks, so a path becomes two arguments."""
    launch = former(self, recipe, lane)
    return replace(launch, argv=tuple(" ".join(launch.argv).split(" ")))


@broken(Reference, "launch", "ARGV-06[run-2]: is 0 words of the command, expected 1")
def quotes_by_hand(launch, self, recipe, lane):
    """Puts quotes around values that need them, for a shell that never sees them, so the name contains the quotes."""
    return launch(self, recipe, replace(lane, run=f'"{lane.run}"' if "$" in lane.run else lane.run))


@broken(Reference, "launch", "ARGV-06[data-3]: is 0 words of the command, expected 1")
def cleans_up_paths(launch, self, recipe, lane):
    """Over-correction: strips every character that a shell might interpret, and trains on another path."""
    path = recipe.data.path
    clean = None if path is None else path.replace("\n", "").replace("\t", "")
    return launch(self, replace(recipe, data=Data(path=clean)), lane)


@broken(Reference, "launch", "ARGV-07[fp16]: is emitted as {'--bf16': ''}, expected {'--fp16': ''}")
def knows_one_half_precision(launch, self, recipe, lane):
    """Emits --bf16 for everything except fp32."""
    return launch(self, replace(recipe, dtype="bf16") if recipe.dtype == "fp16" else recipe, lane)


@broken(Reference, "launch", "ARGV-07[mxfp8]: '--fp8-recipe': 'delayed'}, expected", bugs=("PRV-27",))
def scales_as_it_always_did(former, self, recipe, lane):
    """Reads the format and leaves the scaling at the launcher's default: a recipe named mxfp8 runs delayed scaling."""
    launch = former(self, recipe, lane)
    return launch if recipe.fp8 is None else _saying(launch, "--fp8-recipe", "delayed")


@broken(Reference, "launch", "ARGV-07[fp8-tensorwise]: is emitted as {'--bf16': ''}, expected", bugs=("PRV-27",))
def names_fp8_and_runs_bf16(launch, self, recipe, lane):
    """Recipe, name and receipt say FP8; the argv does not."""
    return launch(self, replace(recipe, fp8=None), lane)


@broken(Reference, "launch", "ARGV-09[one-node]: torchrun --nproc-per-node is '1', expected '8'", bugs=("PG-16",))
def starts_eight_launchers(former, self, recipe, lane):
    """A wrapper starts one launcher with one process for each GPU."""
    launch = former(self, recipe, lane)
    return replace(launch, torchrun=tuple(word.replace("node=8", "node=1") for word in launch.torchrun))


@broken(Reference, "launch", "ARGV-09[two-nodes]: torchrun --nnodes is None, expected '2'")
def stands_alone_on_every_node(launch, self, recipe, lane):
    """Starts `--standalone` on each of two nodes: two runs of half the world, and both report success."""
    alone = ("torchrun", "--standalone", f"--nproc_per_node={lane.gpus}")
    return replace(launch(self, recipe, lane), torchrun=alone)


@broken(Reference, "launch", "ARGV-09[fsdp2-two-nodes]: torchrun --rdzv-id is 'none', expected 'nam56r-18'")
def shares_the_rendezvous_id(former, self, recipe, lane):
    """Leaves the rendezvous id at its default: two runs on one endpoint join each other's world."""
    launch = former(self, recipe, lane)
    return replace(launch, torchrun=tuple(w.replace(f"id={lane.run}", "id=none") for w in launch.torchrun))


class _Switches(Reference):
    def on(self, launch: Launch) -> bool:
        raise NotImplementedError

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        plain = _without(launch, "--use-distributed-optimizer")
        return _saying(plain, "--use-distributed-optimizer") if self.on(launch) else plain


@broken(
    _Switches,
    "on",
    "ARGV-01b[dp1]: --use-distributed-optimizer is present at dp 1",
    "ARGV-01b[dp4-beside-tp2]: --use-distributed-optimizer is missing at dp 4",
    bugs=("ARG-11",),
)
def binds_the_stages_to_the_switch(on, self, launch):
    """A parameter was inserted before `dp`, and callers pass by position: the switch follows the pipeline degree."""
    return launch.degrees.pp > 1


@broken(_Switches, "on", "ARGV-01b[dp8-of-two-nodes]: --use-distributed-optimizer is missing at dp 8")
def knows_one_node(on, self, launch):
    """The switch is decided by the GPUs of a node over the degrees, and written on one node only."""
    return "--standalone" in launch.command


@broken(Reference, "launch", "ARGV-05b[megatron]: was accepted", "ARGV-05b[fsdp2]: was accepted, expected a refusal")
def counts_the_gpus_of_all_nodes(launch, self, recipe, lane):
    """Asks whether the ranks of the run are as many as TP wants, whatever node they are on."""
    spread = replace(launch(self, recipe, replace(lane, nodes=1, gpus=lane.world)), torchrun=())
    return replace(spread, torchrun=("torchrun", f"--nnodes={lane.nodes}", f"--nproc_per_node={lane.gpus}"))
