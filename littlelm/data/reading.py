"""From the sources' weights and a run's length to a loader: how often each source is read, and whether it may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from littlelm.data.configs import DataConfig
from littlelm.data.loader import Loader, Stream
from littlelm.data.mixture import Stages, temperature_weights
from littlelm.errors import UserError

_TOLERANCE = 1e-3  # of an epoch: a last batch may begin the next one


def is_mixed(data: DataConfig) -> bool:
    """Whether sources are read by weight; else all their rows are shuffled together."""
    weighted = any(getattr(source, "weight", None) is not None for source in data.sources)
    return weighted or data.mixture.temperature is not None or bool(data.stages)


def stage_weights(data: DataConfig, sizes: Sequence[int]) -> list[list[float]]:
    """Weights of the sources in the main mixture and in each stage. `sizes` are tokens, for a temperature."""
    ids = data.source_ids
    if data.mixture.temperature is not None:
        main = temperature_weights(sizes, data.mixture.temperature)
    else:
        given = [getattr(source, "weight", None) for source in data.sources]
        main = [float(size) for size in sizes] if given[0] is None else [float(w or 0.0) for w in given]
    return [main, *([stage.weights.get(name, 0.0) for name in ids] for stage in data.stages)]


def stage_starts(data: DataConfig, total_steps: int) -> list[int]:
    """First step of each stage after the main mixture."""
    return [total_steps - round(stage.last * total_steps) for stage in data.stages]


def source_shares(data: DataConfig) -> list[float] | None:
    """Share of the run's tokens that each source gives, when the file says so; None when it follows from sizes."""
    if not is_mixed(data) or (data.mixture.temperature is not None):
        return None
    if getattr(data.sources[0], "weight", None) is None:
        return None
    lasts = [1.0, *(stage.last for stage in data.stages), 0.0]
    shares = [0.0] * len(data.sources)
    for weights, begin, end in zip(stage_weights(data, []), lasts[:-1], lasts[1:], strict=True):
        for index, weight in enumerate(weights):
            shares[index] += (begin - end) * weight / sum(weights)
    return shares


def make_loader(
    data: DataConfig,
    streams: Sequence[Stream],
    sizes: Sequence[int],
    *,
    global_batch_rows: int,
    bos_id: int,
    seed: int,
    total_steps: int | None,
    say: Callable[[str], None],
) -> Loader:
    """The loader of a run of `total_steps` steps; it says how often each source is read when that is more than once.

    `streams` is one a source when they are mixed, else a single one. Under `on_exhausted: stop` the loader's
    `total_steps` may be lower than asked for.

    Raises:
        UserError: fewer rows than a batch; a source that would be read more often than it may.
    """

    def loader(steps: int | None) -> Loader:
        stages = None
        if is_mixed(data):
            starts = [0, *(stage_starts(data, steps or 0))]
            rows = [step * global_batch_rows for step in starts]
            weights = stage_weights(data, sizes)
            stages = Stages(list(zip(rows, weights, strict=True)), seed, [stream.name for stream in streams])
        return Loader(
            streams,
            stages,
            sequence_length=data.sequence_length,
            global_batch_rows=global_batch_rows,
            bos_id=bos_id,
            total_steps=steps,
        )

    made = loader(total_steps)
    if total_steps is None:
        return made
    for stream, epochs in zip(streams, made.epochs(total_steps).values(), strict=True):
        if epochs and not stream.rows:
            raise UserError(f"the source '{stream.name}' has no row to train on; set its weight to 0 or leave it out")
    limits = _limits(data, [stream.name for stream in streams])
    over = _exhausted(made, total_steps, limits)
    if over and data.mixture.on_exhausted == "error":
        raise UserError(_explain(made, over[0], limits, total_steps, data))
    if over and data.mixture.on_exhausted == "stop":
        low, high = 0, total_steps  # the longest run that needs no source too often
        while high - low > 1:
            middle = (low + high) // 2
            if _exhausted(loader(middle), middle, limits):
                high = middle
            else:
                low = middle
        if low == 0:
            raise UserError(_explain(made, over[0], limits, total_steps, data))
        say(
            f"the run ends at step {low:,} of {total_steps:,}: '{over[0]}' is used up then (mixture.on_exhausted: stop)"
        )
        return loader(low)
    for name, epochs in made.epochs(total_steps).items():
        if epochs > 1:
            allowed = "" if name not in over else f", more than the {limits[name]:g} allowed (on_exhausted: repeat)"
            say(f"data: '{name}' is read {epochs:.2f} times{allowed}")
    return made


def _limits(data: DataConfig, streams: Sequence[str]) -> dict[str, float]:
    own = [getattr(source, "max_epochs", None) or data.mixture.max_epochs for source in data.sources]
    return dict(zip(streams, own, strict=True)) if is_mixed(data) else {streams[0]: min(own)}


def _exhausted(loader: Loader, steps: int, limits: dict[str, float]) -> list[str]:
    return [name for name, epochs in loader.epochs(steps).items() if epochs > limits[name] + _TOLERANCE]


def _explain(loader: Loader, name: str, limits: dict[str, float], steps: int, data: DataConfig) -> str:
    rows = next(stream.rows for stream in loader.streams if stream.name == name)
    return (
        f"the run reads '{name}' {loader.epochs(steps)[name]:.2f} times ({rows:,} rows of {data.sequence_length} "
        f"tokens), more than the {limits[name]:g} that data.mixture.max_epochs allows; add text, shorten the run, give "
        "the source less weight, raise max_epochs, or set data.mixture.on_exhausted to repeat or stop"
    )
