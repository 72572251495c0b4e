"""`monarch-hpc sbatch`: submits a program as a batch job of its own, or writes the script of that job."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from monarch_hpc.cli.job_options import exclude_hosts, explained_refusal, queue_options, show_notes
from monarch_hpc.cli.option_values import num_hosts, output_file
from monarch_hpc.cli.output import current_output, output_options
from monarch_hpc.cli.run import ProgramCommand
from monarch_hpc.cli.runs.command_line import Missing, plan_argv
from monarch_hpc.config import Config
from monarch_hpc.core.storage.files import write_private
from monarch_hpc.slurm import plan_job
from monarch_hpc.slurm.batch import BatchRequest, batch_client, plan_batch_flags, render_batch, submit_batch

__all__ = ["command"]


@click.command(
    cls=ProgramCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option(
    "-N",
    "--nodes",
    default="1",
    metavar="N",
    callback=num_hosts,
    help="Number of hosts, as for sbatch: 4, or 2-4.",
)
@queue_options
@click.option("--gpus-per-node", metavar="N", help="GPUs on each host: 4, or a100:4.")
@click.option("-J", "--job-name", metavar="NAME", help="The job's name, instead of the program's.")
@click.option("-a", "--array", metavar="INDICES", help="Run the program once for each index: 0-15%4, in SLURM_ARRAY_*.")
@click.option("-d", "--dependency", metavar="WHAT", help="Start after other jobs: afterok:123.")
@click.option("--requeue-loop", is_flag=True, help="At the time limit, start the program again, after its hooks.")
@click.option("--max-requeues", type=click.IntRange(1), default=10, show_default=True, help="At most so many times.")
@click.option("--slurm", "options", multiple=True, metavar='"--OPTION=VALUE"', help="Any other option of sbatch.")
@click.option("--drop", "dropped", multiple=True, metavar="OPTION", help="Leave a line of the script out: exclusive.")
@click.option(
    "--output-script",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=output_file,
    help="Write the script and stop.",
)
@click.option("--dry-run", is_flag=True, help="Print the batch script and stop.")
@click.argument(
    "program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]... | -- CMD [ARGS]..."
)
@output_options
def command(
    config: Config,
    nodes: str,
    gpus_per_node: str | None,
    job_name: str | None,
    array: str | None,
    dependency: str | None,
    requeue_loop: bool,
    max_requeues: int,
    options: tuple[str, ...],
    dropped: tuple[str, ...],
    output_script: Path | None,
    dry_run: bool,
    program: tuple[str, ...],
    plain: bool,
) -> int:
    """Submit a script as a batch job of its own.

    In the job, 'monarch-hpc run SCRIPT' runs it on the job's hosts. The batch script is plain: it can be read, changed,
    kept and submitted by hand.
    """
    output = current_output()
    argv = plan_argv(program, plain=plain)
    if isinstance(argv, Missing):
        output.error(argv.kind, argv.sentence, argv.exit_code)
        return argv.exit_code
    request = BatchRequest(
        program=("--", *program) if plain else program,
        name=job_name or Path(program[0]).stem,
        folder=Path.cwd(),
        num_hosts=nodes,
        gpus_per_node=gpus_per_node,
        array=array,
        dependency=dependency,
        requeues=max_requeues if requeue_loop else 0,
        options=options,
        dropped=tuple(name.lstrip("-") for name in dropped),
    )
    request = replace(
        request, options=(*request.options, *exclude_hosts(config, plan_batch_flags(config, request), output))
    )
    if dry_run or output_script is not None:
        show_notes(plan_job(config, plan_batch_flags(config, request), None), output)
        script = render_batch(config, request)
        if output_script is not None:
            write_private(output_script, os.fsencode(script))
            output.show({"file": str(output_script)}, f"{output_script}    submit it: sbatch {output_script}", [])
        else:
            output.show({"script": script}, script.removesuffix("\n"), script.splitlines())
        return 0
    slurm = batch_client(config, os.environ)
    plan = plan_job(config, plan_batch_flags(config, request), slurm)
    show_notes(plan, output)
    request = replace(request, options=(*request.options, *plan.options))
    with explained_refusal(config, plan_batch_flags(config, request)):
        job_id = submit_batch(config, request, slurm)
    output.show({"job_id": job_id, "name": request.name}, f"job {job_id}  {request.name}", [str(job_id)])
    return 0
