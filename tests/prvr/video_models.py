"""Tiny models of `transformers` with random weights, as folders: nothing is downloaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WORDS = ["a", "[PAD]", "red", "circle", "rises", "falls", "blue", "square", "moves", "left", "right", "[UNK]"]
WORDS += ["<s>", "</s>"]
LETTERS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *"abcdeilqrsu"]  # of the tokenizer of SigLIP 2
_LAYERS: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_TEXT: dict[str, Any] = _LAYERS | {
    "vocab_size": len(WORDS),
    "max_position_embeddings": 16,
    "bos_token_id": 12,
    "eos_token_id": 13,
    "pad_token_id": 13,
}
_VISION: dict[str, Any] = _LAYERS | {"image_size": 32, "patch_size": 8}


def tiny_clip(folder: Path, nudge: float = 0.0) -> Path:
    """A CLIP with a space of 12; `nudge` is added to one weight."""
    from transformers import CLIPConfig, CLIPModel

    sizes = {"projection_dim": 12}
    config: Any = CLIPConfig(text_config=_TEXT | sizes, vision_config=_VISION | sizes, **sizes)
    model = _random(CLIPModel(config))
    with torch.no_grad():
        model.visual_projection.weight[0, 0] += nudge
    return save_clip(model, folder)


def square_clip(folder: Path) -> Path:
    """A CLIP as ViT-B/32 is, with a joint space as wide as its text encoder: 16. Its pictures have 16 x 16 pixels."""
    from transformers import CLIPConfig, CLIPModel

    text = _TEXT | {"intermediate_size": 64, "num_hidden_layers": 3, "projection_dim": 16}
    vision = _VISION | {"num_hidden_layers": 1, "image_size": 16, "projection_dim": 16}
    config: Any = CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    return save_clip(_random(CLIPModel(config)), folder)


def save_clip(model: Any, folder: Path) -> Path:
    """The folder of a CLIP, with its tokenizer and how its pictures are prepared."""
    side = model.config.vision_config.image_size
    about = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": side},
        "crop_size": {"height": side, "width": side},
        "resample": 3,
        "image_mean": [0.48, 0.46, 0.41],
        "image_std": [0.27, 0.26, 0.28],
    }
    _save(model, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return folder


def tiny_siglip(folder: Path) -> Path:
    """A SigLIP with a space of 16."""
    from transformers import SiglipConfig, SiglipModel

    config: Any = SiglipConfig(text_config=_TEXT | {"projection_size": 16}, vision_config=_VISION)
    about = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}, "resample": 3}
    _save(_random(SiglipModel(config)), folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return folder


def tiny_roberta(folder: Path) -> Path:
    """A RoBERTa that reads 14 tokens."""
    from transformers import RobertaConfig, RobertaModel

    config: Any = RobertaConfig(**_TEXT | {"pad_token_id": 1})
    return _save(_random(RobertaModel(config)), folder)


def tiny_whisper(folder: Path) -> Path:
    """A Whisper whose tokens are letters, a few special ones, and times."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperTokenizer,
    )

    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|startofprev|>"]
    special += ["<|notimestamps|>"]  # the times come after it
    tokenizer: Any = WhisperTokenizer({letter: i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}, [])
    tokenizer.add_tokens(special, special_tokens=True)
    tokenizer.add_tokens([f"<|{number / 50:.2f}|>" for number in range(1501)])
    end, start, english, transcribe, before, timeless = tokenizer.convert_tokens_to_ids(special)
    ends: Any = {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start}
    layers: Any = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}
    sizes: Any = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in layers.items()}
    config = WhisperConfig(vocab_size=len(tokenizer), d_model=16, max_target_positions=32, **sizes, **ends)
    model: Any = _random(WhisperForConditionalGeneration(config))
    model.generation_config = GenerationConfig(
        is_multilingual=True,
        lang_to_id={"<|en|>": english},
        task_to_id={"transcribe": transcribe},
        no_timestamps_token_id=timeless,
        prev_sot_token_id=before,
        max_length=32,
        **ends,
    )
    for part in (model, tokenizer, WhisperFeatureExtractor()):
        part.save_pretrained(folder)
    return folder


def _random(model: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def _save(model: Any, folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    cutter: Any = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    cutter.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<s>", 12), ("</s>", 13)]
    cutter.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=cutter, model_max_length=16, **names).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def tiny_xclip(folder: Path) -> Path:
    """An X-CLIP with a space of 12, of 4 frames."""
    from transformers import XCLIPConfig, XCLIPModel

    sizes = {"projection_dim": 12}
    between = {"num_frames": 4, "mit_hidden_size": 12, "mit_intermediate_size": 32, "mit_num_hidden_layers": 1}
    vision = _VISION | between | {"mit_num_attention_heads": 2}
    config: Any = XCLIPConfig(text_config=_TEXT | sizes, vision_config=vision, prompt_num_attention_heads=2, **sizes)
    about = {"image_processor_type": "VideoMAEImageProcessor", "size": {"shortest_edge": 32}, "resample": 2}
    _save(_random(XCLIPModel(config)), folder)
    about |= {"crop_size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    (folder / "processor_config.json").write_text('{"processor_class": "XCLIPProcessor"}')
    return folder


def tiny_sentence_model(folder: Path) -> Path:
    """A model of sentence-transformers that takes videos of 4 frames, and texts, around an X-CLIP."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer

    methods = {"text": "get_text_features", "video": "get_video_features"}
    ways: Any = {kind: {"method": name, "method_output_name": "pooler_output"} for kind, name in methods.items()}
    part = Transformer(
        str(tiny_xclip(folder.with_suffix(".xclip"))), modality_config=ways, module_output_name="sentence_embedding"
    )
    SentenceTransformer(modules=[part], device="cpu").save(str(folder))
    return folder


def tiny_qwen(folder: Path) -> Path:
    """A model of sentence-transformers as Qwen3-VL-Embedding is: the last of the hidden states, 16, at unit length."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLModel, Qwen3VLProcessor
    from transformers.models.qwen2_vl import Qwen2VLImageProcessor
    from transformers.models.qwen3_vl import Qwen3VLVideoProcessor

    marks = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    words = {
        word: place for place, word in enumerate([*WORDS, *marks, "user", "<", "seconds", ">", ".", *"0123456789"])
    }
    cutter: Any = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    cutter.pre_tokenizer = pre_tokenizers.Whitespace()
    cutter.add_special_tokens(marks)
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "<|im_end|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=cutter, model_max_length=4096, **names)
    video = (
        "{% if part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    )
    content = f"{{% for part in message.content %}}{video}{{% endfor %}}"
    template = f"{{% for message in messages %}}<|im_start|>user {content}<|im_end|>{{% endfor %}}"
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    text = _LAYERS | {"num_key_value_heads": 1, "head_dim": 8, "vocab_size": len(words), "rope_parameters": rope}
    sizes = {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 16}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "deepstack_visual_indexes": [0]}
    tokens = {
        f"{name}_token_id": words[f"<|{mark}|>"] for name, mark in (("image", "image_pad"), ("video", "video_pad"))
    }
    tokens |= {f"vision_{end}_token_id": words[f"<|vision_{end}|>"] for end in ("start", "end")}
    config: Any = Qwen3VLConfig(text_config=text, vision_config=vision | sizes, **tokens)
    inner = folder.with_suffix(".qwen")
    _random(Qwen3VLModel(config)).save_pretrained(inner)
    cut: Any = {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 4096, "longest_edge": 1_000_000}}
    parts = {"image_processor": Qwen2VLImageProcessor(**cut), "video_processor": Qwen3VLVideoProcessor(**cut)}
    Qwen3VLProcessor(tokenizer=tokenizer, chat_template=template, **parts).save_pretrained(inner)
    model = Transformer(str(inner))
    modules = [model, Pooling(model.get_embedding_dimension(), pooling_mode="lasttoken"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    return folder


_AFTER_PAD: dict[str, Any] = {"pad_token_id": 1, "max_position_embeddings": 10}  # 8 follow the padding token


def _tiny_dual() -> Any:
    """As multilingual CLIPs are made: a ViT and the text tower of an XLM-R."""
    from transformers import VisionTextDualEncoderConfig, VisionTextDualEncoderModel, ViTConfig, XLMRobertaConfig

    vision: Any = ViTConfig(**_VISION)
    text: Any = XLMRobertaConfig(**_TEXT | _AFTER_PAD)
    sizes: Any = {"projection_dim": 12}
    return VisionTextDualEncoderModel(VisionTextDualEncoderConfig.from_vision_text_configs(vision, text, **sizes))


def _tiny_siglip2() -> Any:
    from transformers import Siglip2Config, Siglip2Model

    vision = _LAYERS | {"num_patches": 16, "patch_size": 8}
    text = _TEXT | {"vocab_size": len(LETTERS), "projection_size": 16}
    config: Any = Siglip2Config(text_config=text, vision_config=vision)
    return Siglip2Model(config)


_SQUARE: dict[str, Any] = {"size": {"height": 32, "width": 32}, "resample": 3}
_JOINT: dict[str, tuple[Callable[[], Any], str, dict[str, Any]]] = {
    "vision-text-dual-encoder": (_tiny_dual, "ViTImageProcessor", _SQUARE),
    "siglip2": (_tiny_siglip2, "Siglip2ImageProcessor", {"patch_size": 8, "max_num_patches": 16}),
}
JOINT = ("clip", "siglip", *_JOINT)
"""Types of models that have features of images and of texts."""


def tiny_joint(kind: str, folder: Path) -> Path:
    """A model of one of these types, with its tokenizer and its own image processor.

    A dual encoder reads 8 tokens, the others 16.
    """
    if kind in ("clip", "siglip"):
        return tiny_clip(folder) if kind == "clip" else tiny_siglip(folder)
    make, processor, about = _JOINT[kind]
    _save(_random(make()), folder)
    if kind == "siglip2":
        from transformers import Siglip2Tokenizer

        letters = {letter: place for place, letter in enumerate(LETTERS)}
        Siglip2Tokenizer(vocab=letters, merges=[], model_max_length=16).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": processor} | about))
    return folder
