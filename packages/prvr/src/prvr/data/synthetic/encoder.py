"""Frame features of the embedded corpus: a fixed random view of the scene. Simulated: no pixel is drawn."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from prvr.data.synthetic.world import BACKGROUNDS, COLOURS, FPS, SHAPES, SIZES, Event, Thing, Video

FEATURE_DIM = 96
LOOK_DIM = 48  # how a thing looks, before it is placed
GRID = 4
GAIN = 4.0  # a thing in full view, against a background of 0.4 and the noise below
NOISE = 0.4
DRIFT = 0.05  # camera, per second


@dataclass(frozen=True)
class _State:
    """A thing over k frames: place in [0, 1]^2, scale, visibility, brightness, angle."""

    thing: Thing
    place: np.ndarray
    scale: np.ndarray
    alpha: np.ndarray
    light: np.ndarray
    angle: np.ndarray


class SceneEncoder:
    """Maps a video's scene to frame features (n f): what is there, roughly where, how large and bright, with noise.

    Each of 4 x 4 cells sees a thing by its own random projection, most of which all cells share: place survives and
    looks can be compared between places. One frame does not tell an action from its opposite.

    Args:
        seed: of the projections; one corpus has one.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 101])
        self._shapes = _unit(rng.standard_normal((len(SHAPES), LOOK_DIM)))
        self._colours = _unit(rng.standard_normal((len(COLOURS), LOOK_DIM)))
        self._pairs = 0.25 * _unit(rng.standard_normal((len(SHAPES), len(COLOURS), LOOK_DIM)))
        self._sizes = 0.6 * _unit(rng.standard_normal((len(SIZES), LOOK_DIM)))
        self._turn = 0.6 * _unit(rng.standard_normal((2, LOOK_DIM)))
        self._light = 0.6 * _unit(rng.standard_normal(LOOK_DIM))
        shared = rng.standard_normal((LOOK_DIM, FEATURE_DIM))
        own = rng.standard_normal((GRID * GRID, LOOK_DIM, FEATURE_DIM))
        cells = GAIN * (shared + 0.5 * own) / np.sqrt(LOOK_DIM)
        where = 0.4 * _unit(rng.standard_normal((GRID * GRID, FEATURE_DIM))) * np.sqrt(FEATURE_DIM)
        self._projection = np.concatenate([cells.reshape(-1, FEATURE_DIM), where])
        self._backgrounds = 0.4 * rng.standard_normal((BACKGROUNDS, FEATURE_DIM))

    def encode(self, video: Video, rng: np.random.Generator) -> Float[np.ndarray, "n f"]:
        """Features of a video at 2 frames per second, (n 96) float32; ``rng`` draws places, camera and noise."""
        count = max(1, int(np.ceil(video.duration * FPS)))
        times = (np.arange(count) + 0.5) / FPS
        drift = np.cumsum(rng.standard_normal((count, 2)), axis=0) * DRIFT / np.sqrt(FPS)
        x = np.tile(self._backgrounds[video.background] + 0.2 * rng.standard_normal(FEATURE_DIM), (count, 1))
        scene = np.zeros((count, len(self._projection)))
        for event in video.events:
            inside = np.flatnonzero((times >= event.start) & (times < event.end))
            progress = (times[inside] - event.start) / (event.end - event.start)
            for state in _states(event, progress, rng):
                scene[inside] += self._view(state, drift[inside])
        x += scene @ self._projection
        slow = rng.standard_normal((count, FEATURE_DIM))
        for i in range(1, count):  # what changes from frame to frame changes slowly, as in real features
            slow[i] = 0.8 * slow[i - 1] + 0.6 * slow[i]
        x += NOISE * (0.8 * slow + 0.6 * rng.standard_normal(x.shape))
        return np.tanh(x / 2).astype(np.float32)

    def _view(self, state: _State, drift: np.ndarray) -> np.ndarray:
        thing = state.thing
        shape, colour = SHAPES.index(thing.shape), COLOURS.index(thing.colour)
        look = self._shapes[shape] + self._colours[colour] + self._pairs[shape, colour]
        look = look + self._sizes[SIZES.index(thing.size)]
        turn = np.stack([np.cos(state.angle), np.sin(state.angle)], 1) @ self._turn
        looks = (look + turn + state.light[:, None] * self._light) * (0.6 + 0.4 * state.scale)[:, None]
        centres = (np.stack(np.meshgrid(range(GRID), range(GRID)), -1).reshape(-1, 2) + 0.5) / GRID
        distance = np.square((state.place + drift)[:, None] - centres).sum(-1)
        weights = np.exp(-distance / (2 * (0.15 * state.scale[:, None]) ** 2 + 0.01))
        weights /= weights.sum(1, keepdims=True)
        placed = (weights[:, :, None] * looks[:, None]).reshape(len(looks), -1)
        return state.alpha[:, None] * np.concatenate([placed, weights], axis=1)


def _states(event: Event, progress: np.ndarray, rng: np.random.Generator) -> list[_State]:
    """The actor, and the other of a push, over an event's frames. An opposite runs backwards, or swaps the parts."""
    action, t, one = event.action, progress, np.ones(len(progress))
    if action in ("right", "up", "shrink", "vanish", "anticlockwise", "darken"):
        t = 1 - t
    angle, x, y = rng.uniform(0, 2 * np.pi), *rng.uniform(0.25, 0.75, 2)
    still = np.stack([x * one, y * one], 1)
    size = {"small": 0.7, "medium": 1.0, "large": 1.3}[event.actor.size] * one
    place, scale, alpha, light, angles = still, size, one, 0 * one, angle * one
    if action in ("left", "right"):
        place = np.stack([0.95 - 0.9 * t, y * one], 1)
    elif action in ("up", "down"):
        place = np.stack([x * one, 0.05 + 0.9 * t], 1)
    elif action in ("grow", "shrink"):
        scale = 0.4 + 1.4 * t
    elif action in ("appear", "vanish"):
        alpha = np.clip(0.1 + 1.2 * t, 0, 1)
    elif action in ("clockwise", "anticlockwise"):
        angles = angle + 4 * np.pi * t
    elif action in ("brighten", "darken"):
        light = 3 * t - 1.5
    if event.other is None:
        return [_State(event.actor, place, scale, alpha, light, angles)]
    # A push runs along a diagonal: the pusher comes up to the other, then both go on together.
    way = np.stack([0.1 + 0.8 * t, 0.1 + 0.8 * t], 1)
    ahead = np.maximum(way + 0.12, 0.5)
    pusher, pushed = (way, ahead) if action == "push" else (ahead, way)
    zero = 0 * one
    return [
        _State(event.actor, pusher, size, one, zero, angle * one),
        _State(event.other, pushed, one, one, zero, angle * one + 1),
    ]


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
