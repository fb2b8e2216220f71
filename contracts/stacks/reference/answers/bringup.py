"""What the reference answers about a launch, a node and the evidence of a run: `contracts/bringup` asks it."""

from contracts.stacks.reference.answers.capacity import CapacityAnswers
from contracts.stacks.reference.answers.installation import InstallationAnswers
from contracts.stacks.reference.answers.lifecycle import LifecycleAnswers
from contracts.stacks.reference.answers.node import NodeAnswers
from contracts.stacks.reference.receipts.receipt import ReceiptAnswers


class BringupAnswers(NodeAnswers, InstallationAnswers, ReceiptAnswers, LifecycleAnswers, CapacityAnswers):
    QUESTIONS = (
        NodeAnswers.QUESTIONS
        | InstallationAnswers.QUESTIONS
        | ReceiptAnswers.QUESTIONS
        | LifecycleAnswers.QUESTIONS
        | CapacityAnswers.QUESTIONS
    )
