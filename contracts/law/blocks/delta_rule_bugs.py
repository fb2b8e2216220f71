"""The gated delta rule with one bug in its decay, its correction, its state or its precision.

B sequences · L tokens of a chunk · H heads · n keys · p values
"""

import torch

from contracts.law._bugs.numeric import broken
from contracts.stacks.reference.kernels import delta_rule


@broken(delta_rule, "written", "BLK-10a[plain]: y differs: ", "BLK-10g[in-chunks]: y differs: ")
def never_corrects(written, part, decay, since, state):
    """Linear attention with decay: nothing is taken away of what a key held."""
    return part.beta[..., None] * part.v


@broken(delta_rule, "written", "BLK-10a[one-token]: y differs: ", "BLK-10b[packed]: y in chunks of 5 differs")
def corrects_inside_a_chunk_only(written, part, decay, since, state):
    """A value is not corrected by the state before the chunk."""
    return written(part, decay, since, torch.zeros_like(state))


@broken(delta_rule, "written", "BLK-10a[plain]: y differs: ", "BLK-10b[plain]: y in chunks of 5 differs")
def corrects_by_the_state_only(written, part, decay, since, state):
    """A value is not corrected by earlier tokens of the chunk."""
    return written(part, torch.zeros_like(decay), since, state)


@broken(delta_rule, "written", "BLK-10a[plain]: y differs: ")
def beta_stands_at_the_value_only(written, part, decay, since, state):
    """Whatever beta is, a key forgets all that it held."""
    wanted = part.beta[..., None] * part.v - since[..., None] * (part.k @ state)
    held = part.k @ part.k.mT * decay
    return torch.linalg.solve_triangular(held.tril(-1), wanted, upper=False, unitriangular=True)


@broken(delta_rule, "written", "BLK-10a[one-token]: y differs: ")
def corrects_before_the_decay(written, part, decay, since, state):
    """The old value is read from the state before its decay."""
    return written(part, decay, since / part.g.exp(), state)


@broken(delta_rule, "written", "BLK-10e[inside-a-chunk]: tokens from 13 on change the output at token 8")
def corrects_by_later_tokens(written, part, decay, since, state):
    """The triangle is left out where the system is solved, so that a token is corrected by later ones too."""
    held = part.beta[..., None] * (part.k @ part.k.mT)
    wanted = part.beta[..., None] * (part.v - since[..., None] * (part.k @ state))
    return torch.linalg.solve(held.triu(1) + torch.eye(held.shape[-1], dtype=held.dtype), wanted)


@broken(delta_rule, "between", "BLK-10a[sharp-decay]: y differs: ")
def decay_as_a_quotient(between, part):
    """exp(a - b) as exp(a) / exp(b): both are 0 after enough decay."""
    total = part.g.cumsum(-1)
    found = (total[..., :, None].exp() / total[..., None, :].exp()).nan_to_num(0.0, posinf=0.0)
    return found.tril() * (between(part) != 0)


@broken(delta_rule, "between", "BLK-10d[packed]: y of row 0 differs")
def documents_of_a_chunk_mix(between, part):
    """A chunk does not look at the borders of documents."""
    return between(part._replace(document=torch.zeros_like(part.document)))


@broken(delta_rule, "since_the_state", "BLK-10d[packed]: y of row 0 differs")
def the_state_reaches_every_document(since_the_state, part):
    """The state before a chunk belongs to every token of it."""
    return since_the_state(part._replace(document=part.before[:, None].expand_as(part.document)))


@broken(
    delta_rule, "since_the_state", "BLK-10a[chunks-of-eight]: y differs: ", "BLK-10c[inside-a-chunk]: y in two halves"
)
def the_state_is_handed_on_without_decay(since_the_state, part):
    """The state before a chunk does not fade inside it."""
    return since_the_state(part._replace(g=torch.zeros_like(part.g)))


@broken(
    delta_rule, "over", "BLK-10a[chunks-of-eight]: the gradient of ", "BLK-10b[plain]: in chunks of 5 the gradient of "
)
def no_gradient_crosses_a_chunk(over, part, state):
    """The state is detached between chunks."""
    return over(part, state.detach())


@broken(delta_rule, "over", "BLK-10a[one-token]: the last state differs")
def the_last_state_lacks_the_last_token(over, part, state):
    """The state that is returned was taken before the last token was written."""
    y, _ = over(part, state)
    short = delta_rule.Chunk(*(each[:, :, :-1] for each in part[:5]), part.document[:, :-1], part.before)
    return y, over(short, state)[1] if short.document.shape[1] else state


@broken(delta_rule, "over", "BLK-10a[plain]: y differs: ")
def reads_before_it_writes(over, part, state):
    """A token reads the state before its own write."""
    y, last = over(part, state)
    u = delta_rule.written(part, delta_rule.between(part), delta_rule.since_the_state(part), state)
    own = (part.q * part.k).sum(-1, keepdim=True) * u
    return y - own, last


@broken(delta_rule, "over", "BLK-10a[plain]: y differs: ", "BLK-10g[in-chunks]: y differs: ")
def scales_twice(over, part, state):
    """The query is divided by the square root of the number of keys once more where it reads."""
    return over(part._replace(q=part.q * part.q.shape[-1] ** -0.5), state)


@broken(delta_rule, "over", "BLK-10a[plain]: the gradient of ")
def the_last_state_has_no_gradient(over, part, state):
    """The state is returned for a cache only, detached."""
    y, last = over(part, state)
    return y, last.detach()


@broken(delta_rule, "unit", "BLK-10a[unit-keys]: y differs: ")
def the_epsilon_stands_outside_the_root(unit, x):
    """x / (|x| + 1e-6), as torch.nn.functional.normalize nearly does."""
    return x / (x.norm(dim=-1, keepdim=True) + delta_rule.EPS)


@broken(delta_rule, "unit", "BLK-10a[unit-keys]: y differs: ", "BLK-10g[in-chunks]: y differs: ")
def keys_have_unit_mean_square(unit, x):
    """An RMS norm in place of an L2 norm."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + delta_rule.EPS)


@broken(delta_rule, "between", "BLK-10f[whole]: the last state differs")
def decays_are_summed_in_bfloat16(between, part):
    """The cumulative decay has the dtype of the activations."""
    total = part.g.bfloat16().cumsum(-1).to(part.g.dtype)
    return between(part._replace(g=torch.diff(total, dim=-1, prepend=torch.zeros_like(total[..., :1]))))


@broken(delta_rule, "over", "BLK-10f[whole]: the last state differs")
def the_state_is_rounded_between_chunks(over, part, state):
    """The state is stored in bfloat16."""
    y, last = over(part, state)
    return y, last.bfloat16().to(last.dtype)
