"""Everything that can be chosen, as frozen dataclasses: one YAML preset is one `Config`.

`load_config("hlformer-tvr", {"optim.lr": 1e-4})` reads a preset (or a YAML file) and applies dotted overrides.
"""

from prvr.config.load import ConfigError as ConfigError
from prvr.config.load import config_from_dict as config_from_dict
from prvr.config.load import config_leaves as config_leaves
from prvr.config.load import config_to_dict as config_to_dict
from prvr.config.load import dump_config as dump_config
from prvr.config.load import load_config as load_config
from prvr.config.load import model_config_from_dict as model_config_from_dict
from prvr.config.load import preset_names as preset_names
from prvr.config.load import preset_text as preset_text
from prvr.config.load import read_yaml as read_yaml
from prvr.config.load import read_yaml_file as read_yaml_file
from prvr.config.load import records_of as records_of
from prvr.config.load import token_model_config_from_dict as token_model_config_from_dict
from prvr.config.load import validated as validated
from prvr.config.load import yaml_value as yaml_value
from prvr.config.losses import LOSSES as LOSSES
from prvr.config.losses import LossConfig as LossConfig
from prvr.config.losses import active_losses as active_losses
from prvr.config.model import BLOCKS as BLOCKS
from prvr.config.model import FUSIONS as FUSIONS
from prvr.config.model import BlockConfig as BlockConfig
from prvr.config.model import Compat as Compat
from prvr.config.model import ModelConfig as ModelConfig
from prvr.config.model import RegisterConfig as RegisterConfig
from prvr.config.registry import Registry as Registry
from prvr.config.registry import released_part as released_part
from prvr.config.run import Config as Config
from prvr.config.token_model import TokenCompat as TokenCompat
from prvr.config.token_model import TokenModelConfig as TokenModelConfig
from prvr.config.training import DataConfig as DataConfig
from prvr.config.training import OptimConfig as OptimConfig
from prvr.config.training import TrainConfig as TrainConfig
from prvr.config.training import TrainerConfig as TrainerConfig

__all__ = [
    "BLOCKS",
    "FUSIONS",
    "LOSSES",
    "BlockConfig",
    "Compat",
    "Config",
    "ConfigError",
    "DataConfig",
    "LossConfig",
    "ModelConfig",
    "OptimConfig",
    "RegisterConfig",
    "Registry",
    "TokenCompat",
    "TokenModelConfig",
    "TrainConfig",
    "TrainerConfig",
    "active_losses",
    "config_from_dict",
    "config_leaves",
    "config_to_dict",
    "dump_config",
    "load_config",
    "model_config_from_dict",
    "preset_names",
    "preset_text",
    "read_yaml",
    "read_yaml_file",
    "records_of",
    "released_part",
    "token_model_config_from_dict",
    "validated",
    "yaml_value",
]
