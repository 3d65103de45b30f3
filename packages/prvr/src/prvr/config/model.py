"""Configuration of a retriever.

Blocks, fusions, clip constructions, frame poolings and query encoders are registered, with the keys of `model` that
they alone read: here, or in the package of `prvr.published` whose paper alone has them.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from prvr.config.registry import Chosen, Registry, named_parts, own_modules, registered
from prvr.config.strict import MANY, STRICT
from prvr.errors import InputError

BLOCKS: Registry[Callable[..., Any]] = Registry("space")
"""Mixers of the positions in a block, by `space`: `(model, num)` makes a `prvr.models.blocks.Mixer` of `num` blocks."""

FUSIONS: Registry[Callable[..., Any]] = Registry("fusion")
"""Fusions of the outputs of parallel blocks into one sequence: `(model, length)` makes a module that takes blocks
`(k, v, l, d)` and a mask to `(v, l, d)`. One that needs "first" is also given the fusion of the branch before, or None,
of which it may share parameters."""

CLIPS: Registry[Callable[..., Any]] = Registry("clip_construction")
"""What the rows of the clip branch are: `(model)` makes a `prvr.models.clips.ClipConstruction`."""

POOLINGS: Registry[Callable[..., Any]] = Registry("frame_pooling")
"""What queries are compared with of the frames: `(model)` makes a `prvr.models.clips.FramePooling`."""

QUERIES: Registry[Callable[..., Any]] = Registry("query_encoder")
"""Encoders of queries into one vector: `(model)` makes a `prvr.models.encoders.QueryPart`, whose settings are
`model.query_encoder`, a `QuerySettings`. It needs "tokens" if words are token numbers, which are read as stored."""

FRAME_QUERIES: Registry[Callable[..., Any]] = Registry("frame_query")
"""What frames are compared with, where that is not the vector of the query: `(model)` makes a module such as
`prvr.models.encoders.FrameQuery`, or None."""

STREAMS: Registry[Callable[..., Any]] = Registry("stream.fusion")
"""How a second stream joins the frames: `(model)` makes a module that takes queries `(q, d)`, and their cosines, or
products, with the best frame and with the best row of the stream of each video, `(q, v)` each, to `(q, v)`."""

COMPAT: dict[str, Registry[Any]] = {
    name: Registry(f"compat.{name}")
    for name in (
        "window",
        "padding",
        "lorentz",
        "entailment",
        "register_noise",
        "register_times",
        "register_constants",
        "transport",
        "merging",
    )
}
"""Parts of which the released code has other ones, by the field of `Compat` that names them.

window: `(model, widths, length)` makes a module from a length to the windows `(k, l, l)` of blocks. padding: a
`prvr.models.rows.Padding`; it needs "rows" if padded rows change results. lorentz: `(model, num)` makes the mixer of
Lorentz blocks. entailment: `(settings, model)` makes a `prvr.losses.Term`. register_noise, register_times,
register_constants: change a generator of registers. transport: functions of the intra-video loss of Holmes. merging:
from the frames that are merged to those that are encoded; it needs "lengths" if frames are read as they are stored."""


BLOCKS.register("euclidean", "prvr.models.blocks:EuclideanMixer", "Multi-head attention (GMMFormer, HLFormer).")
FUSIONS.register("mean", "prvr.models.fusion:MeanFusion", "Mean of the blocks (GMMFormer).")
FUSIONS.register(
    "mean_guided",
    "prvr.models.fusion:mean_guided",
    "The mean asks each block for its weights (MAIM, HLFormer eq. 17).",
    needs=("fusion_temperature",),
)
CLIPS.register("equal", "prvr.models.clips:EqualClips", "Equal parts of the video.")
COMPAT["window"].register("centred", "prvr.models.blocks:centred_windows", "1 on the diagonal, keys and centres alike.")
COMPAT["window"].register(
    "printed",
    "prvr.models.blocks:printed_windows",
    "HLFormer eq. 10 to the letter, on positions, where `width` is sigma, and with the factor 1 / 2 pi.",
)
COMPAT["padding"].register("masked", "prvr.models.rows:MASKED", "Padded rows change nothing.")
COMPAT["register_noise"].register("gaussian", "prvr.models.retriever:unchanged", "Drawn for each target and step.")
COMPAT["register_times"].register("sincos", "prvr.models.retriever:unchanged", "Time codes are sinusoids.")
COMPAT["register_constants"].register("float64", "prvr.models.retriever:unchanged", "The noise schedule is exact.")
COMPAT["merging"].register("unit", "prvr.models.clips:as_read", "Frames of unit length merge.")
POOLINGS.register("none", "prvr.models.clips:EveryFrame", "Every frame.")
STREAMS.register("mean", "prvr.models.streams:mean_of_streams", "(1 - weight) frames + weight stream.")


def needs_both_branches(model: "ModelConfig") -> Iterator[str]:
    """Why a model cannot compare its frames with anything but the vector of a query."""
    if model.query_encoder.kind != "attention":
        yield f"frame_query={model.frame_query!r} needs query_encoder='attention', got {model.query_encoder.kind!r}"
    if model.branches != "both":
        yield f"frame_query={model.frame_query!r} needs branches='both', got {model.branches!r}"


FRAME_QUERIES.register("pooled", "prvr.models.encoders:no_frame_query", "The vector of the query, as clips.")
for _name in ("words", "pooled_words"):
    FRAME_QUERIES.register(
        _name, "prvr.models.encoders:FrameQuery", "Words of a second encoder (Holmes).", check=needs_both_branches
    )


@dataclass(frozen=True, config=STRICT)
class StreamConfig:
    """A second stream of rows of each video, beside its frames: of its sound, its subtitles, generated captions."""

    feature: str = Field(min_length=1, pattern=r"^[^/\\]*[^/\\.][^/\\]*$")
    """A folder or HDF5 file under FeatureData. Its rows have a rate of their own; a video may lack them, and then its
    frames count alone."""
    dim: int = Field(default=0, ge=0, le=MANY)
    """Width of its rows; 0 = that of the data."""
    max_rows: int = Field(default=128, gt=0, le=65_536)
    """More rows than this become as many means of neighbours."""
    fusion: Annotated[str, registered(STREAMS)] = "mean"
    """How the best row of the stream joins the best frame."""
    weight: float = Field(default=0.5, ge=0, le=1)
    """Of the stream, with fusion='mean'."""

    def problems(self, model: "ModelConfig") -> Iterator[str]:
        """Why a model cannot have a second stream."""
        kinds = {model.branches, model.frame_query, model.start, model.frame_pooling, model.padded_rows}
        if bad := kinds & {"clips", "words", "pooled_words", "second", "kernel", "key_clip", "fixed"}:
            yield f"stream joins the frames that a pooled query is compared with, got {', '.join(bad)}"


@dataclass(frozen=True, config=STRICT)
class QuerySettings:
    """The encoder of queries. One of your own has settings that derive from these."""

    kind: str = "attention"
    """The name of the encoder."""


QUERIES.register(
    "attention",
    "prvr.models.encoders:QueryEncoder",
    "A block, then attention pooling (HLFormer eq. 7).",
    QuerySettings,
)


@dataclass(frozen=True, config=STRICT)
class BlockConfig:
    """One attention block: its geometry and the width of its Gaussian window (None = unlimited)."""

    space: Annotated[str, registered(BLOCKS)] = "euclidean"
    width: float | None = Field(default=None, gt=0, le=1e6)


@dataclass(frozen=True, config=STRICT)
class Compat:
    """Where the released code differs from the papers or from what is correct, which of the two is built.

    Defaults are correct. Each value is the name of a part in `COMPAT`; `docs/compat.md` has a row per field.
    """

    window: Annotated[str, registered(COMPAT["window"])] = "centred"
    padding: Annotated[str, registered(COMPAT["padding"])] = "masked"
    lorentz: Annotated[str, registered(COMPAT["lorentz"])] = "correct"
    entailment: Annotated[str, registered(COMPAT["entailment"])] = "correct"
    register_noise: Annotated[str, registered(COMPAT["register_noise"])] = "gaussian"
    register_times: Annotated[str, registered(COMPAT["register_times"])] = "sincos"
    register_constants: Annotated[str, registered(COMPAT["register_constants"])] = "float64"
    transport: Annotated[str, registered(COMPAT["transport"])] = "masked"
    merging: Annotated[str, registered(COMPAT["merging"])] = "unit"
    lorentz_start: Literal["balanced", "printed"] = "balanced"
    """With lorentz='correct', where the Lorentz blocks start. balanced: the logits of their attention have a deviation
    of about 1 over keys. printed: the temperature sqrt(n + 1) of HLFormer eq. 15 and weights N(0, 0.02), where the
    deviation is 0.0001 and attention is uniform."""


@dataclass(frozen=True, config=STRICT)
class RegisterConfig:
    """Global register tokens that every block sees as extra keys and values (DreamPRVR)."""

    kind: Literal["none", "pooled", "condition", "prior", "diffusion"] = "none"
    """prior: where the diffusion would start, without condition and denoiser."""
    num: int = Field(default=8, ge=1, le=4096)
    """Number of registers of a video."""
    steps: int = Field(default=10, ge=1, le=10_000)
    """Diffusion steps trained."""
    sampling_steps: int | None = Field(default=None, ge=1, le=10_000)
    """Steps taken when sampling, at most `steps`; None = all of them."""
    scheduler: Literal[
        "ddim",
        "ddpm",
        "dpmsolver++",
        "sde-dpmsolver++",
        "unipc",
        "deis",
        "euler",
        "euler-ancestral",
        "heun",
        "lcm",
        "tcd",
        "flow",
    ] = "ddim"
    """The sampler, by its name in `regdiff.SCHEDULERS`. The denoiser predicts the noise, with flow the flow."""
    clip: bool = True
    """Whether each step clips its estimate of the clean registers to [-1, 1]."""
    variance: Literal["posterior", "beta"] = "posterior"
    """Variance of the noise that a step adds: that of the posterior, or beta, with scheduler='ddpm' alone."""
    layers: int = Field(default=2, ge=1, le=256)
    """Number of blocks of the denoiser."""
    start: Literal["prior_mean", "prior_sample", "gaussian"] = "prior_sample"
    """Where the diffusion starts: at the prior's mean, at a sample of the prior, or at N(0, I) without a prior. With
    kind='prior' these are the registers themselves."""
    loss_timesteps: Literal["all", "random"] = "all"
    """The diffusion loss is the mean over all timesteps, or takes one random timestep per video."""

    @model_validator(mode="after")
    def _consistent(self) -> "RegisterConfig":
        if self.sampling_steps is not None and self.sampling_steps > self.steps:
            raise InputError(f"sampling_steps={self.sampling_steps} is beyond steps={self.steps}, the trained ones")
        if self.variance == "beta" and self.scheduler != "ddpm":
            raise InputError(f"variance='beta' needs scheduler='ddpm', got {self.scheduler!r}")
        if self.kind == "prior" and self.start == "gaussian":
            raise InputError("kind='prior' needs start='prior_sample' or 'prior_mean': 'gaussian' has no prior")
        return self

    def problems(self, model: "ModelConfig") -> Iterator[str]:
        """Why a model cannot have these registers."""
        if self.kind == "none":
            return
        if model.layer != "transformer":
            yield "registers need layer='transformer'"
        if model.branches == "frames":
            yield "registers are generated from the clips: branches must be 'both' or 'clips'"
        if model.depth > 1:
            yield "registers need depth=1"

    @property
    def prediction_type(self) -> str:
        """What the denoiser predicts, as `regdiff.make_scheduler` calls it."""
        return "flow" if self.scheduler == "flow" else "epsilon"

    @property
    def scheduler_options(self) -> dict[str, Any]:
        """The options of `regdiff.make_scheduler` that say how a step clips and how much noise it adds."""
        return {"clip_sample": self.clip} | ({"variance_type": "fixed_large"} if self.variance == "beta" else {})

    @property
    def provides(self) -> tuple[str, ...]:
        """What losses may ask of these registers, see `prvr.config.LOSSES`."""
        diffusion = ("diffusion",) if self.kind == "diffusion" else ()
        prior = ("prior",) if self.kind in ("diffusion", "prior") and self.start != "gaussian" else ()
        return diffusion + prior


def _renamed_start(value: Any) -> Any:
    return "kernel" if value == "linear" else value


@dataclass(frozen=True, config=STRICT)
class PathConfig:
    """The kernel path of `start: kernel`, as its fit has chosen it (`prvr.training.closed_form`)."""

    windows: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = Field(
        default=(8, 12, 16), min_length=1, max_length=16
    )
    """A row holds the means of windows of these lengths, in frames; rows lie half of the shortest one apart."""
    kernel: Literal["gaussian", "linear"] = "gaussian"
    """The kernel of two rows. linear: their product."""
    landmarks: int = Field(default=1, ge=1, le=1_000_000)
    """Training rows with which a row is compared."""
    toward: Literal["zero", "identity"] = "zero"
    """identity: the map is added to the mean of the windows, see `fit.toward`."""
    width: float | None = None
    """Width of the Gaussian, see `fit.widths`; None: the kernel is linear, or the model older than this key."""
    penalty: float | None = None
    """See `fit.penalties`; None: the model is older than this key."""
    temperature: float | None = None
    """See `fit.temperatures`; None: the model is older than this key."""

    @property
    def text(self) -> str:
        """What the fit has chosen, in words.

        Examples:
            >>> PathConfig((8, 12), width=2.0, penalty=0.3, temperature=0.05).text
            'windows of 8, 12 frames, gaussian kernel, width 2, penalty 0.3, temperature 0.05'
            >>> PathConfig((8, 12), "linear").text
            'windows of 8, 12 frames, linear kernel'
        """
        numbers = {"width": self.width, "penalty": self.penalty, "temperature": self.temperature}
        texts = [f"windows of {', '.join(map(str, self.windows))} frames", f"{self.kernel} kernel"]
        return ", ".join([*texts, *(f"{name} {value:g}" for name, value in numbers.items() if value is not None)])


@dataclass(frozen=True, config=STRICT, kw_only=True)
class ModelConfig:
    """A retriever: input widths, the list of blocks, the fusion, the registers, the score's weights."""

    video_dim: int = Field(ge=0, le=MANY)
    """Width of frame features; 0 = that of the data."""
    query_dim: int = Field(ge=0, le=MANY)
    """Width of word features; 0 = that of the data."""
    hidden: int = Field(default=384, ge=2, le=65_536)
    heads: int = Field(default=4, gt=0, le=65_536)
    """Number of attention heads of every block and of the query encoder; divides `hidden`."""
    num_clips: int = Field(default=32, gt=0, le=65_536)
    """Number of clips of a video."""
    clip_construction: Annotated[str, registered(CLIPS)] = "equal"
    """equal: the clips themselves, equal parts of the video; proposals: means of every run of neighbouring clips, that
    is `num_clips * (num_clips + 1) / 2` rows for each video (MS-SL); frames: this branch encodes
    frames, as the other one does, and clips are not read (DL-DKD); merged: neighbouring frames that are alike, merged
    (MSC-PRVR)."""
    max_frames: int = Field(default=128, gt=0, le=65_536)
    """Rows of a video; longer videos become as many means of neighbours."""
    max_words: int = Field(default=30, gt=0, le=65_536)
    """Words of a sentence; the rest is left out."""
    branches: Literal["both", "clips", "frames", "none"] = "both"
    """none: the kernel path of `start: kernel` alone."""
    start: Annotated[Literal["drawn", "kernel"], BeforeValidator(_renamed_start)] = "drawn"
    """kernel: a map of frames on sentences is fitted in closed form before training (`fit`) and stays as it is, a path
    beside the blocks. The total score is (1 - gate) that of the path + gate that of the blocks, where the gate is
    chosen after training (`fit.gates`). Earlier versions called it linear."""
    path: PathConfig = PathConfig()
    layer: Literal["transformer", "attention"] = "transformer"
    """transformer: attention and feed-forward, post-norm; attention: output projection, no feed-forward (GMMFormer)."""
    depth: int = Field(default=1, ge=1, le=256)
    blocks: tuple[BlockConfig, ...] = Field(default=(BlockConfig(),), max_length=256)
    """Parallel attention blocks, whose outputs `fusion` joins: `space` and `width` of each."""
    lorentz_dim: int = Field(default=127, ge=2, le=65_536)
    """Dimension n of the hyperbolic space of blocks with space='lorentz'."""
    lorentz_magnitude: Literal["free", "printed", "bounded"] = "free"
    """Length of the space part of queries, keys and values. free: that of W h(x) + b; printed: lambda (p.x + b') along
    it, as in HLFormer eq. 14; bounded: lambda sigmoid(p.x + b') along it, which cannot change its sign."""
    lorentz_activation: Literal["none", "relu"] = "none"
    """h of eq. 14, before the linear map."""
    lorentz_curvature: float = Field(default=1.0, ge=0.01, le=10)
    """c of the curvature -c of the blocks, or its initial value; beyond 100 float32 does not hold their points."""
    lorentz_curvature_learned: bool = False
    """True: c is a parameter, one for the Lorentz blocks of a branch, within a factor of 10 of `lorentz_curvature`."""
    fusion: Annotated[str, registered(FUSIONS)] = "mean_guided"
    fusion_temperature: float = Field(default=0.6, ge=1e-6, le=1e6)
    """tau of the softmax over blocks of fusion='mean_guided' and 'token_guided'."""
    window: Literal["multiply", "add"] = "add"
    """multiply: logits times the window (the papers); add: logits plus its logarithm."""
    padded_rows: Literal["auto", "compute", "drop", "fixed"] = "auto"
    """drop: padded frames are not computed. Faster, and the same result up to rounding with compat.padding='masked';
    with others, the mean that guides the fusion covers a video's own frames only. Dropout draws other numbers. auto:
    drop with compat.padding='masked', compute with the others. fixed: computed, and training
    pads frames and words to a quarter, half or all of `max_frames` and `max_words`, so that steps have few shapes."""
    frame_pooling: Annotated[str, registered(POOLINGS)] = "none"
    """linear: each frame is mapped linearly (DL-DKD). attention: frames are pooled to one vector per video (GMMFormer).
    key_clip: each clip pools the frames by its own
    attention, and a query is compared with the result of the clip that fits it best (MS-SL)."""
    motion: Literal["none", "difference", "absolute", "features"] = "none"
    """difference: a linear map of how the features change around each clip and each frame is added to the input of the
    branch, so that a sequence and the same one backwards differ from the start (`prvr.models.encoders.Motion`).
    absolute and features are its controls, the same map of absolute changes or of the features themselves."""
    query_encoder: Annotated[QuerySettings, Chosen(QUERIES, "attention")] = QuerySettings()
    """What makes one vector of the words of a query: a name, or a mapping with the name as `kind`, and settings."""
    frame_query: Annotated[str, registered(FRAME_QUERIES)] = "pooled"
    """What frames are compared with. pooled: the vector of the query, as clips; words: each word of a second query
    encoder, the best frame of each counts by the weight of the word (Holmes with two query branches); pooled_words: the
    weighted sum of these words, which has the same parameters; second: the vector of a second query encoder, which
    shares nothing with the first (DL-DKD)."""
    word_weights: Literal["learned", "uniform"] = "learned"
    """Weights of words with frame_query='words' or 'pooled_words'. uniform: all the same, without parameters."""
    stream: StreamConfig | None = None
    """A second stream, encoded by a branch of its own, of the same blocks."""
    input_dropout: float = Field(default=0.2, ge=0, lt=1)
    """Dropout of the features, before their projection."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """Dropout inside the blocks."""
    registers: RegisterConfig = RegisterConfig()
    clip_weight: float = Field(default=0.5, ge=0, le=1e6)
    """Weight of the score by clips in the total score."""
    frame_weight: float = Field(default=0.5, ge=0, le=1e6)
    """Weight of the score by frames in the total score."""
    compat: Compat = Compat()

    @property
    def own_modules(self) -> list[str]:
        """The modules of others that registered its parts."""
        return own_modules(
            [*(registry[name] for registry, name in model_parts(self)), *named_parts(COMPAT, self.compat).values()]
        )

    @property
    def padding_counts(self) -> bool:
        """Whether padded rows change results."""
        return "rows" in COMPAT["padding"][self.compat.padding].needs

    @model_validator(mode="after")
    def _consistent(self) -> "ModelConfig":
        for problem in self._problems():
            raise InputError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """What keeps the parts from going together: each part says what it needs of the model."""
        entries = [
            *named_parts(COMPAT, self.compat).values(),
            *(registry[name] for registry, name in model_parts(self)),
        ]
        if self.branches == "none" and self.start != "kernel":
            yield "branches='none' leaves the kernel path alone: set start='kernel', got 'drawn'"
        if self.hidden % self.heads:
            yield f"hidden={self.hidden} must be a multiple of heads={self.heads}"
        if not self.blocks:
            yield "blocks is empty: list at least one, for example [{space: euclidean}]"
        for part in (*entries, self.registers, *([] if self.stream is None else [self.stream])):
            yield from part.problems(self)
        if self.depth > 1 and self.fusion != "mean":
            yield f"depth={self.depth} needs fusion='mean', got {self.fusion!r}: set depth=1 or fusion='mean'"
        if self.branches == "both" and not (self.clip_weight or self.frame_weight):
            yield "clip_weight and frame_weight are both 0: every score would be 0, set one above 0"

    @property
    def unit_rows(self) -> bool:
        """Whether rows of frames and words are scaled to unit length before it reads them."""
        return True

    @property
    def stored_words(self) -> bool:
        """Whether it reads words as they are stored: token numbers."""
        return "tokens" in QUERIES[self.query_encoder.kind].needs

    @property
    def frame_lengths(self) -> bool:
        """Whether it reads frames as long as they are stored, and scales them itself."""
        return "lengths" in COMPAT["merging"][self.compat.merging].needs

    @property
    def width(self) -> int:
        """Width of the space in which queries are compared with videos."""
        return self.query_dim if self.branches == "none" else self.hidden

    @property
    def provides(self) -> frozenset[str]:
        """What losses may ask of this model, see `prvr.config.LOSSES`."""
        if self.branches == "none":
            return frozenset(("pooled",))
        branches = {"both": ("clips", "frames"), "clips": ("clips",), "frames": ("frames",)}[self.branches]
        key_clip = ("key_clip",) if self.frame_pooling == "key_clip" else ()
        words = ("words",) if self.frame_query == "words" else ()
        rows = ("frame_rows",) if self.clip_construction == "frames" and self.branches != "frames" else ()
        several = self.frame_pooling == "none" and self.branches == "both"
        merged = ("merged",) if self.clip_construction == "merged" and several else ()
        return frozenset(
            ("pooled", "last_words", *branches, *key_clip, *words, *rows, *merged, *self.registers.provides)
        )

    @property
    def drops_padding(self) -> bool:
        """Whether padded frames are left out of the computation."""
        return self.padded_rows == "drop" or (self.padded_rows == "auto" and not self.padding_counts)

    def padded_length(self, length: int, most: int) -> int:
        """What a sequence of at most `most` rows is padded to: a quarter, half or all of them with padded_rows='fixed'.

        Examples:
            >>> ModelConfig(video_dim=1, query_dim=1, padded_rows="fixed").padded_length(33, 128)
            64
        """
        if self.padded_rows != "fixed":
            return length
        return min((size for size in (-(-most // 4), -(-most // 2), most) if size >= length), default=length)


MODEL_PARTS = (BLOCKS, FUSIONS, CLIPS, POOLINGS, QUERIES, FRAME_QUERIES)
"""The registries of the parts of a model."""


def model_parts(model: ModelConfig) -> list[tuple[Registry[Any], str]]:
    """The registered parts that a model is made of, each with its registry.

    Examples:
        >>> sorted((registry.what, name) for registry, name in model_parts(ModelConfig(video_dim=4, query_dim=4)))
        ... # doctest: +NORMALIZE_WHITESPACE
        [('clip_construction', 'equal'), ('frame_pooling', 'none'), ('frame_query', 'pooled'),
         ('fusion', 'mean_guided'), ('query_encoder', 'attention'), ('space', 'euclidean')]
    """
    chosen = {FUSIONS: model.fusion, CLIPS: model.clip_construction, POOLINGS: model.frame_pooling}
    chosen |= {QUERIES: model.query_encoder.kind, FRAME_QUERIES: model.frame_query}
    if model.stream is not None:
        chosen[STREAMS] = model.stream.fusion
    return list(dict.fromkeys([*((BLOCKS, block.space) for block in model.blocks), *chosen.items()]))
