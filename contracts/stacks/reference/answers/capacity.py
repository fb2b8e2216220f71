"""What the reference plans to hold in memory, and which kernels it may choose."""

from contracts.spec import Recipe, cards, memory, parameters
from contracts.spec import kernels as catalogue
from contracts.spec.capacity import (
    Budget,
    Card,
    Fit,
    KernelChoice,
    KernelRequest,
    KernelRule,
    Measured,
    ParameterCount,
    Promotion,
    Proof,
    Spread,
)


class CapacityAnswers:
    """The answers of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset(
        {"card", "count_parameters", "budget", "fit", "kernels", "kernel", "promotion"}
    )

    def card(self, name: str) -> Card:
        return cards.card(name)

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        return parameters.count(recipe)

    def budget(self, recipe: Recipe, spread: Spread, card: Card) -> Budget:
        return memory.budget(recipe, spread, card)

    def fit(self, needed_bytes: int, card: Card, measured: Measured | None) -> Fit:
        return cards.fit(needed_bytes, card, measured)

    def kernels(self) -> tuple[KernelRule, ...]:
        return catalogue.CATALOGUE

    def kernel(self, request: KernelRequest) -> KernelChoice:
        return catalogue.choose(request)

    def promotion(self, variant: str, device: str, proofs: tuple[Proof, ...]) -> Promotion:
        return catalogue.promotion(variant, device, proofs)
