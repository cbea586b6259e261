"""The command line: one verb per command, no logic of its own. Nothing here imports torch before it must."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from littlelm import __version__
from littlelm.errors import UserError

app = typer.Typer(
    help="One YAML file in, a trained language model out, on your own money.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
config_app = typer.Typer(
    help="Look at run files: what is resolved, what differs, what is allowed.", no_args_is_help=True
)
data_app = typer.Typer(help="Prepare and check training data.", no_args_is_help=True)
tokenizer_app = typer.Typer(help="Train tokenizers.", no_args_is_help=True)
schedule_app = typer.Typer(help="Look at schedules.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(tokenizer_app, name="tokenizer")
app.add_typer(schedule_app, name="schedule")
eval_app = typer.Typer(help="Evaluate models, and compare results.", no_args_is_help=True)
app.add_typer(eval_app, name="eval")

RunFile = Annotated[Path, typer.Argument(metavar="FILE", help="a run file (YAML), or a run directory")]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="a run directory, or one of its checkpoints")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a key, e.g. model.hidden_size=512")
]


@app.command()
def train(file: RunFile, overrides: Overrides = None) -> None:
    """Train what FILE describes; the same command again goes on where a stopped run was."""
    from littlelm.commands.train import run_training

    raise typer.Exit(run_training(file, overrides or []))


@app.command()
def sample(
    run: RunDir,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="text to continue; may be repeated")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="tokens to generate at most")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="keep the k most likely tokens")] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="keep the likeliest of this mass")] = None,
    seed: Annotated[int, typer.Option(help="the same seed gives the same text")] = 1337,
) -> None:
    """Continue a prompt with the newest weights of RUN, streaming."""
    from littlelm.commands.sample import stream_samples

    stream_samples(run, prompt or [], max_new_tokens, temperature, top_k, top_p, seed)


@app.command()
def report(run: RunDir) -> None:
    """Write RUN/report.html: the run as pictures and numbers, in one file."""
    from littlelm.report import write_report

    typer.echo(write_report(run))


@app.command()
def model(file: RunFile, overrides: Overrides = None) -> None:
    """Layer table, parameters by role and FLOPs per token, without allocating the model."""
    from littlelm.commands.inspect import show_model

    show_model(file, overrides or [])


@app.command()
def components(
    kind: Annotated[str | None, typer.Argument(help="for example optimizer")] = None,
    name: Annotated[str | None, typer.Argument(help="for example muon")] = None,
) -> None:
    """List every kind of component and its names; with KIND and NAME, the keys of one."""
    from littlelm.commands.inspect import show_components

    show_components(kind, name)


@config_app.command("show")
def config_show(file: RunFile, overrides: Overrides = None) -> None:
    """Print the fully resolved file: every default explicit, the origin of each value."""
    from littlelm.commands.inspect import show_config

    show_config(file, overrides or [])


@config_app.command("diff")
def config_diff(before: RunFile, after: RunFile) -> None:
    """What differs between two files once resolved, and what that does to parameters, FLOPs, memory, time, dollars."""
    from littlelm.commands.inspect import show_diff

    show_diff(before, after)


@config_app.command("schema")
def config_schema(
    out: Annotated[Path | None, typer.Option("--out", help="write the schema here instead of printing it")] = None,
) -> None:
    """Print the JSON schema of run files, for editors."""
    from littlelm.commands.inspect import show_schema

    show_schema(out)


@data_app.command("prepare")
def data_prepare(
    file: RunFile,
    overrides: Overrides = None,
    shard_range: Annotated[
        str | None, typer.Option(metavar="I/N", help="make only every N-th shard from I on: one of N machines' share")
    ] = None,
) -> None:
    """Download, tokenize, shard and pack the data of FILE, as `train` would, and report on it."""
    from littlelm.commands.data import prepare_data

    prepare_data(file, overrides or [], shard_range)


@data_app.command("verify")
def data_verify(file: RunFile, overrides: Overrides = None) -> None:
    """Check every digest and offset of FILE's prepared data."""
    from littlelm.commands.data import verify_data

    verify_data(file, overrides or [])


@data_app.command("plan")
def data_plan(
    file: RunFile,
    overrides: Overrides = None,
    cores: Annotated[int, typer.Option(min=1, help="cores of the machine that prepares")] = 32,
    megabits: Annotated[float, typer.Option("--bandwidth", min=1.0, help="its line, Mbit/s")] = 1000.0,
    disk: Annotated[float, typer.Option("--disk", min=1.0, help="its disk, MB/s written or read")] = 1000.0,
) -> None:
    """Hours, gigabytes and bottleneck of preparing FILE's data, by arithmetic."""
    from littlelm.commands.data import plan_data

    plan_data(file, overrides or [], cores, megabits, disk)


@data_app.command("stats")
def data_stats(
    file: RunFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="also write a picture (.png, .svg)")] = None,
) -> None:
    """Documents, tokens, lengths, largest files, and packing at context 512 to 8192."""
    from littlelm.commands.data_look import show_stats

    show_stats(file, overrides or [], out)


@data_app.command("show")
def data_show(
    file: RunFile,
    overrides: Overrides = None,
    step: Annotated[int, typer.Option(min=0, help="step, counted from 0")] = 0,
    row: Annotated[int, typer.Option(min=0, help="row of the step's global batch, counted from 0")] = 0,
    characters: Annotated[int, typer.Option(min=0, help="characters of each document to print")] = 400,
) -> None:
    """The documents in one row of one training step, decoded, with file and offset."""
    from littlelm.commands.data_look import show_row

    show_row(file, overrides or [], step, row, characters)


@data_app.command("where")
def data_where(
    file: RunFile,
    text: Annotated[str, typer.Argument(help="text to look for, exactly as written")],
    overrides: Overrides = None,
    limit: Annotated[int, typer.Option(min=1, help="documents to print")] = 20,
) -> None:
    """The documents that hold a text, and the steps at which each is read."""
    from littlelm.commands.data_look import find_text

    find_text(file, overrides or [], text, limit)


@data_app.command("contamination")
def data_contamination(
    file: RunFile,
    bundle: Annotated[str, typer.Option("--bundle", help="CORE tasks: a directory, a zip, or the URL of a zip")],
    overrides: Overrides = None,
    sha256: Annotated[str | None, typer.Option("--sha256", help="digest of the zip; a URL needs it")] = None,
    examples: Annotated[int, typer.Option(min=0, help="items of each task to print with where they stand")] = 1,
) -> None:
    """Benchmark items that share 13 words in a row with the training text, by task."""
    from littlelm.commands.data_look import show_contamination

    show_contamination(file, overrides or [], bundle, sha256, examples)


@tokenizer_app.command("train")
def tokenizer_train(
    files: Annotated[list[str], typer.Argument(help="text, .jsonl or .parquet files or globs")],
    out: Annotated[Path, typer.Option("--out", help="the tokenizer file to write")],
    vocab_size: Annotated[int, typer.Option(min=258, help="tokens, the special one included")] = 32_768,
    column: Annotated[str, typer.Option(help="column or field that holds the text")] = "text",
) -> None:
    """Train a byte-level BPE tokenizer."""
    from littlelm.commands.data import train_tokenizer

    train_tokenizer(files, out, vocab_size, column)


@schedule_app.command("plot")
def schedule_plot(
    file: RunFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="also write a picture (.png, .svg)")] = None,
) -> None:
    """Plot learning rate, momentum and weight decay over the run."""
    from littlelm.commands.inspect import plot_schedules

    plot_schedules(file, overrides or [], out)


@eval_app.command("core")
def eval_core(
    model: Annotated[
        Path, typer.Argument(metavar="RUN|HF_DIR", help="a run, a checkpoint, or a Hugging Face directory")
    ],
    bundle: Annotated[
        str | None, typer.Option(help="directory, zip or URL of the tasks; default: $LITTLE_LM_CORE_BUNDLE")
    ] = None,
    sha256: Annotated[str | None, typer.Option(help="digest of the zip; a URL needs it")] = None,
    tasks: Annotated[list[str] | None, typer.Option("--task", help="only this task; may be repeated")] = None,
    max_per_task: Annotated[int | None, typer.Option(help="items of each task; changes every prompt")] = None,
    budget: Annotated[
        float | None, typer.Option(help="estimate CORE from this share of its tokens, for example 0.2")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="rows too long: crop_left, none or error")] = None,
    max_length: Annotated[int | None, typer.Option(help="tokens of a row, below the model's context")] = None,
    engine: Annotated[str | None, typer.Option(help="packed, or reference: the slow oracle")] = None,
    pack_tokens: Annotated[int | None, typer.Option(help="tokens computed at one time")] = None,
    dtype: Annotated[
        Literal["fp32", "bf16"] | None, typer.Option(help="of the activations; default: the run's, fp32 for HF_DIR")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: CUDA when there is one")] = "auto",
    out: Annotated[Path | None, typer.Option(help="directory of the results; default: RUN/evals/core-<step>")] = None,
    cache_dir: Annotated[Path | None, typer.Option(help="where bundles and token rows are kept")] = None,
) -> None:
    """CORE of a model: 22 tasks, their errors, and what the context cuts off."""
    from littlelm.commands.evaluate import evaluate_core

    options = {
        "bundle": bundle, "sha256": sha256, "tasks": tasks, "max_per_task": max_per_task, "budget": budget,
        "policy": policy, "max_length": max_length, "engine": engine, "pack_tokens": pack_tokens,
    }  # fmt: skip
    evaluate_core(model, options, device, dtype, out, cache_dir)


@eval_app.command("harness")
def eval_harness(
    model: Annotated[
        Path, typer.Argument(metavar="RUN|HF_DIR", help="a run, a checkpoint, or a Hugging Face directory")
    ],
    tasks: Annotated[str, typer.Option(help="tasks or groups of lm-evaluation-harness, separated by commas")],
    shots: Annotated[int | None, typer.Option(min=0, help="examples before each question; default: the task's")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="documents of each task")] = None,
    include_path: Annotated[Path | None, typer.Option(help="directory of further task files")] = None,
    dtype: Annotated[
        Literal["fp32", "bf16"] | None, typer.Option(help="of the activations; default: the run's, fp32 for HF_DIR")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: CUDA when there is one")] = "auto",
    out: Annotated[Path | None, typer.Option(help="file of the results; default: below RUN/evals")] = None,
) -> None:
    """Tasks of lm-evaluation-harness, over the same engine (needs the extra `eval`)."""
    from littlelm.commands.evaluate import run_harness

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    run_harness(model, names, shots, limit, device, dtype, include_path, out)


@eval_app.command("compare")
def eval_compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="a result of `eval core`, or a run that has one")],
    second: Annotated[Path, typer.Argument(metavar="B", help="another")],
    untruncated: Annotated[bool, typer.Option("--untruncated", help="only items cut in neither")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="also write a picture (.png, .svg, .pdf)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """What the difference of two CORE results is worth, item by item."""
    from littlelm.commands.evaluate import compare_results

    compare_results(first, second, untruncated, out, as_json)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"little-lm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Entry point: a user's mistake is one message and exit code 2, never a traceback."""
    try:
        app()
    except UserError as error:
        sys.stdout.flush()
        lines = str(error).splitlines() or ["unknown error"]
        prefix = f"{len(lines)} errors:\n" if len(lines) > 1 and all(": " in line for line in lines) else ""
        sys.stderr.write(f"error: {prefix}{error}\n")
        sys.exit(2)
    except RuntimeError as error:
        if "home directory" not in str(error):  # what pathlib says of ~name when there is no user of that name
            raise
        sys.stderr.write("error: a path begins with ~ and a name that is no user here; write it out\n")
        sys.exit(2)
    except BrokenPipeError:  # `little-lm ... | head`
        sys.stderr.close()
        sys.exit(141)


if __name__ == "__main__":
    main()
