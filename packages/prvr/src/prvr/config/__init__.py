"""Everything that can be chosen, as frozen dataclasses: one YAML preset is one `Config`.

`load_config("hlformer-tvr", {"optim.lr": 1e-4})` reads a preset (or a YAML file) and applies dotted overrides.
"""

from typing import TYPE_CHECKING

from prvr.errors import deferred

if TYPE_CHECKING:
    from prvr.config.load import (
        ConfigError,
        config_leaves,
        config_to_dict,
        dump_config,
        expect_imported,
        expect_readable,
        flat,
        load_config,
        preset_names,
        preset_text,
        read_values,
        read_yaml_file,
        records_of,
        similar_keys,
        validated,
        yaml_value,
    )
    from prvr.config.losses import LOSSES, LossConfig, LossSettings, active_losses
    from prvr.config.model import (
        BLOCKS,
        CLIPS,
        COMPAT,
        FUSIONS,
        POOLINGS,
        QUERIES,
        STREAMS,
        BlockConfig,
        Compat,
        ModelConfig,
        PathConfig,
        QuerySettings,
        RegisterConfig,
        StreamConfig,
    )
    from prvr.config.registry import Registry, module_of, own_modules
    from prvr.config.retrievers import (
        RETRIEVERS,
        AnyModelConfig,
        RetrieverConfig,
    )
    from prvr.config.run import (
        DECAYS,
        Config,
        DataConfig,
        FitConfig,
        OptimConfig,
        RunConfig,
        TrainConfig,
        TrainerConfig,
    )
    from prvr.config.strict import STRICT

__all__ = [
    "BLOCKS",
    "CLIPS",
    "COMPAT",
    "DECAYS",
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

# Imported when first asked for: most commands use a few of them.
__getattr__ = deferred(
    __name__,
    {
        "prvr.config.load": "ConfigError config_leaves config_to_dict dump_config expect_imported expect_readable flat "
        "load_config preset_names preset_text read_values read_yaml_file records_of similar_keys validated yaml_value",
        "prvr.config.losses": "LOSSES LossConfig LossSettings active_losses",
        "prvr.config.model": "BLOCKS CLIPS COMPAT FUSIONS POOLINGS QUERIES STREAMS BlockConfig Compat ModelConfig "
        "PathConfig QuerySettings RegisterConfig StreamConfig",
        "prvr.config.registry": "Registry module_of own_modules",
        "prvr.config.run": "DECAYS Config DataConfig FitConfig OptimConfig RunConfig TrainConfig TrainerConfig",
        "prvr.config.strict": "STRICT",
        "prvr.config.retrievers": "RETRIEVERS TOKEN_COMPAT AnyModelConfig RetrieverConfig TokenCompat ",
    },
)
