"""evo: evolutionary search for Triton GPU kernels.

    import evo

    result = evo.search("softmax", budget=64)
    print(result.best.speedup, result.best.source)

All names are imported when they are used first, so `import evo` itself is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evo import rewards as rewards
    from evo.api import Evaluator as Evaluator
    from evo.api import load_task as load_task
    from evo.api import resume as resume
    from evo.api import search as search
    from evo.core import plugins as plugins
    from evo.core.errors import EvoError as EvoError
    from evo.core.models import Model as Model
    from evo.core.plugins import register_operator as register_operator
    from evo.core.plugins import register_provider as register_provider
    from evo.core.plugins import register_strategy as register_strategy
    from evo.core.plugins import register_suite as register_suite
    from evo.core.plugins import register_target as register_target
    from evo.core.records import Case as Case
    from evo.core.records import Evaluation as Evaluation
    from evo.core.records import Trial as Trial
    from evo.core.records import Verdict as Verdict
    from evo.programs.session import capture as capture
    from evo.result import BestKernel as BestKernel
    from evo.result import Result as Result
    from evo.rewards import Reward as Reward
    from evo.rewards import TritonReward as TritonReward
    from evo.service.client import Client as Client
    from fitness.tasks.task import Task as Task

from evo.core import VERSION as __version__

# The module that defines each name.  `evo.search` is the package of that name, which can be called as the function.
_HOMES = {
    "BestKernel": "evo.result",
    "Case": "evo.core.records",
    "Client": "evo.service.client",
    "Evaluation": "evo.core.records",
    "Evaluator": "evo.api",
    "EvoError": "evo.core.errors",
    "Model": "evo.core.models",
    "Result": "evo.result",
    "Reward": "evo.rewards",
    "Task": "fitness.tasks.task",
    "Trial": "evo.core.records",
    "TritonReward": "evo.rewards",
    "Verdict": "evo.core.records",
    "capture": "evo.programs.session",
    "load_task": "evo.api",
    "register_operator": "evo.core.plugins",
    "register_provider": "evo.core.plugins",
    "register_strategy": "evo.core.plugins",
    "register_suite": "evo.core.plugins",
    "register_target": "evo.core.plugins",
    "resume": "evo.api",
}
_MODULES = {"plugins": "evo.core.plugins", "rewards": "evo.rewards", "search": "evo.search"}

__all__ = [
    "BestKernel",
    "Case",
    "Client",
    "Evaluation",
    "Evaluator",
    "EvoError",
    "Model",
    "Result",
    "Reward",
    "Task",
    "Trial",
    "TritonReward",
    "Verdict",
    "__version__",
    "capture",
    "load_task",
    "plugins",
    "register_operator",
    "register_provider",
    "register_strategy",
    "register_suite",
    "register_target",
    "resume",
    "rewards",
    "search",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'evo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
