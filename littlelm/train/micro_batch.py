"""How many rows one forward/backward pass takes: `train.micro_batch: auto` and its checks."""

from __future__ import annotations

from littlelm.errors import UserError

# Above this many tokens a pass gains nothing on a CPU: activations leave the caches. Measured on 2 cores, see
# benchmarks/README.md.
_CPU_TOKENS = 4096
# Share of the free memory that activations may take; the rest is for fragmentation and the optimizer's temporaries.
_MEMORY_SHARE = 0.7


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


def rows_per_rank(global_rows: int, world_size: int) -> int:
    """Rows of a global batch for each process. Raises UserError when they cannot be shared equally."""
    if global_rows % world_size:
        raise UserError(
            f"a global batch of {global_rows} rows cannot be shared equally by {world_size} processes; make "
            f"train.global_batch_tokens a multiple of {world_size} x data.sequence_length"
        )
    return global_rows // world_size


def check_micro_batch(rows: int, micro_batch: int) -> int:
    """A micro-batch given by the user. Raises UserError naming the values that divide the rows of a process."""
    if rows % micro_batch:
        raise UserError(
            f"train.micro_batch {micro_batch} does not divide the {rows} rows of one process; possible: "
            f"{', '.join(map(str, divisors(rows)))} (or auto)"
        )
    return micro_batch


def auto_micro_batch(
    rows: int, sequence_length: int, bytes_per_row: int, free_bytes: int, device_type: str
) -> tuple[int, str]:
    """The largest divisor of `rows` whose activations fit, and the reason in words."""
    limit = max(1, int(free_bytes * _MEMORY_SHARE) // max(1, bytes_per_row))
    reason = f"{free_bytes / 2**30:.1f} GiB free, about {bytes_per_row / 2**20:.0f} MiB a row"
    if device_type == "cpu" and limit * sequence_length > _CPU_TOKENS:
        limit = max(1, _CPU_TOKENS // sequence_length)
        reason = f"at most {_CPU_TOKENS} tokens a pass on a CPU"
    return max(each for each in divisors(rows) if each <= limit or each == 1), reason


def next_smaller(rows: int, micro_batch: int) -> int | None:
    """The next smaller divisor, for a second try after running out of memory; None when there is none."""
    smaller = [each for each in divisors(rows) if each < micro_batch]
    return smaller[-1] if smaller else None
