"""Everything that can be chosen, as frozen dataclasses: one YAML preset is one `Config`.

`load_config("hlformer-tvr", {"optim.lr": 1e-4})` reads a preset (or a YAML file) and applies dotted overrides.
"""

from typing import TYPE_CHECKING

from prvr.errors import deferred

if TYPE_CHECKING:
    from prvr.config.load import *
    from prvr.config.losses import *
    from prvr.config.model import *
    from prvr.config.registry import *
    from prvr.config.retrievers import *
    from prvr.config.run import *
    from prvr.config.strict import *

__all__ = [
    "BLOCKS",
    "CLIPS",
    "COMPAT",
    "DECAYS",
    "FRAME_QUERIES",
    "FUSIONS",
    "LOSSES",
    "POOLINGS",
    "QUERIES",
    "RETRIEVERS",
    "STREAMS",
    "STRICT",
    "AnyModelConfig",
    "BlockConfig",
    "Compat",
    "Config",
    "ConfigError",
    "DataConfig",
    "FitConfig",
    "LossConfig",
    "LossSettings",
    "ModelConfig",
    "OptimConfig",
    "PathConfig",
    "QuerySettings",
    "RegisterConfig",
    "Registry",
    "RetrieverConfig",
    "RunConfig",
    "StreamConfig",
    "TrainConfig",
    "TrainerConfig",
    "active_losses",
    "config_leaves",
    "config_to_dict",
    "dump_config",
    "expect_imported",
    "expect_readable",
    "flat",
    "load_config",
    "module_of",
    "own_modules",
    "preset_names",
    "preset_text",
    "read_values",
    "read_yaml_file",
    "records_of",
    "similar_keys",
    "validated",
    "yaml_value",
]

# Imported when first asked for, in this order until one has the name: most commands use a few of them.
__getattr__ = deferred(__name__, "strict registry model retrievers losses run load")
