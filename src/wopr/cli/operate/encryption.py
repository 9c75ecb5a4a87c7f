"""`wopr encryption`: keys that encrypt stored content."""

from __future__ import annotations

import base64
import os
import secrets

import typer

from wopr.cli.database import database_url
from wopr.cli.errors import CliError, ExitCode, command, exit_code_of_status
from wopr.cli.options import DbOption, JsonOption
from wopr.cli.output import note, print_json_value, print_line
from wopr.protocol.errors import WoprError
from wopr.security.encryption import KEY_BYTES, UnusableKeys

app = typer.Typer(help="Encrypt stored content, and change the key.", no_args_is_help=True)


@app.command("new-key")
@command
def new_key() -> None:
    """Print a new random key, as base64. It is not stored anywhere."""
    print_line(base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode())


@app.command("rotate")
@command
def rotate(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Encrypt all stored content with the first of the configured keys.

    First restart all hosts with the new key before the old one. They can run during this command.
    After an interruption, run the command again. When it has finished, the old key is no longer
    needed. On PostgreSQL, use the URL of the owner of the database.
    """
    from wopr.process.keys import content_cipher
    from wopr.store.reencryption import reencrypt

    try:
        cipher = content_cipher(os.environ)
    except UnusableKeys as fault:
        raise CliError(str(fault), ExitCode.USAGE) from None
    if cipher is None:
        raise CliError(
            "no encryption key is configured",
            ExitCode.USAGE,
            hint="set WOPR_ENCRYPTION_KEY, WOPR_ENCRYPTION_KEY_FILE or WOPR_ENCRYPTION_KEY_COMMAND",
        )
    total_so_far = 0

    def report_progress(count: int) -> None:
        nonlocal total_so_far
        if (total_so_far + count) // 10_000 > total_so_far // 10_000:
            note(f"{total_so_far + count} values")
        total_so_far += count

    try:
        total = reencrypt(database_url(db), cipher, report_progress)
    except WoprError as fault:
        raise CliError(fault.message, exit_code_of_status(fault.status), code=fault.code) from None
    if as_json:
        print_json_value({"keyId": cipher.key_ids[0], "values": total})
    else:
        print_line(f"{total} values were encrypted with the key {cipher.key_ids[0]}")
