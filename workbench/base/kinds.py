"""Names for types that much of the package speaks of. Everything may stand on this, and it imports
no library.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

# named values of different kinds: a JSON object, settings, keyword arguments
Fields = dict[str, Any]
Prompt = str | Sequence[Fields]  # a text, or chat messages
Function = Callable[..., Any]  # called with whatever it takes, as reward functions are
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor
    from torch.nn import Module

    # or PEFT's wrapper, which forwards what it lacks to one
    from transformers import PreTrainedModel as Model
    from transformers import PreTrainedTokenizerBase as Tokenizer
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from trl import GRPOTrainer as Trainer
else:
    Axes = Figure = Trainer = Tensor = Module = Model = Tokenizer = TrainingArguments = (
        TrainerState
    ) = TrainerControl = Any
