"""`wopr encryption`: keys that encrypt stored content."""

from __future__ import annotations

import base64
import os
import secrets

import typer

from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode, exit_code_of_status
from wopr.cli.options import DbOption, JsonOption
from wopr.cli.output import note, print_json_value, print_line
from wopr.cli.paths import database_url
from wopr.protocol.errors import WoprError
from wopr.security.encryption import UnusableKeys
from wopr.security.seal import KEY_BYTES

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

    Hosts may go on meanwhile, once all of them have been restarted with the new key first and the
    old one after it. Run the command again when it was interrupted. At the end the old key is not
    needed any more. On PostgreSQL, name the URL of the database's owner.
    """
    from wopr.runtime.encryption_keys import content_cipher
    from wopr.store.reencrypting import reencrypt

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
    counted = 0

    def done(count: int) -> None:
        nonlocal counted
        if (counted + count) // 10_000 > counted // 10_000:
            note(f"{counted + count} values")
        counted += count

    try:
        total = reencrypt(database_url(db), cipher, done)
    except WoprError as fault:
        raise CliError(fault.message, exit_code_of_status(fault.status), code=fault.code) from None
    if as_json:
        print_json_value({"keyId": cipher.key_ids[0], "values": total})
    else:
        print_line(f"{total} values were encrypted with the key {cipher.key_ids[0]}")
