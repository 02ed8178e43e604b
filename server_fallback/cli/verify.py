"""nearfar verify: check the receipts of an answer, and compute the answer again."""

from __future__ import annotations

import asyncio

from rich.console import Console

from nearfar.compiler.bundle.folder import Bundle, ExportBundle, open_any
from nearfar.compiler.bundle.signature import read_trusted_keys
from nearfar.compiler.cli.model import open_command_runner
from nearfar.compiler.cli.output import print_json, shown
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.generate import PREFILL_CHUNK
from nearfar.compiler.runtime.runner import Limits

from ..receipts.signing import read_receipt_keys
from ..receipts.verify import (
    Given,
    Verified,
    check_request_hash,
    read_given,
    read_object,
    summary,
    tokens_of,
    unverifiable,
    verify_answer,
    verify_statement,
)
from .options import Verify

NO_TOKENS = "the answer was not computed again: the file has no tokens; request them with return_token_ids: true"


def run(options: Verify) -> None:
    """Raises RequestError unless all receipts are verified, after it has printed what was found."""
    given, trusted = read_given(options.receipt), read_receipt_keys(options.signed_by)
    body = None if options.request is None else read_object(options.request, "the request that was answered")
    bundle = open_any(options.bundle, read_trusted_keys(options.trust))
    bundle.verify()
    found = [verify_statement(value, bundle, trusted) for value in given.receipts]
    for each in found:
        if body is None:
            each.notes.append("the answer was not computed again; pass --request FILE")
        elif check_request_hash(each, body):
            _compute(each, body, given, bundle, options)
    if options.exact:
        for each in found:
            each.faults += [f"{result.ties} differences are within rounding" for result in each.replayed if result.ties]
    _print(options, found)
    faults = [fault for each in found for fault in each.faults]
    if faults:
        raise RequestError(f"the answer is not verified: {faults[0]}", faults=faults)


def _compute(
    found: Verified, body: dict[str, object], given: Given, bundle: Bundle | ExportBundle, options: Verify
) -> None:
    """With another bundle or changed tokens, there is nothing to compare."""
    # A receipt of a pair covers a part of the answer's text.
    choices = given.choices if len(given.receipts) == 1 else None
    answers = tokens_of(found, choices)
    if answers is None:
        found.notes.append(NO_TOKENS)
        return
    if (kind := unverifiable(body)) is not None:
        found.notes.append(f"the answer was not computed again: the request has {kind}")
        return
    if any("bundle" in fault or "hash" in fault for fault in found.faults):
        return
    runner = open_command_runner(options.runner, bundle, Limits(rows=PREFILL_CHUNK))
    try:
        asyncio.run(verify_answer(found, body, answers, choices, runner, bundle))
    finally:
        runner.close()


def _print(options: Verify, found: list[Verified]) -> None:
    if options.json:
        verified = not any(each.faults for each in found)
        print_json({"verified": verified, "receipts": [summary(each) for each in found]})
        return
    console = Console(soft_wrap=True, highlight=False)
    for each in found:
        receipt = each.receipt
        name = f"{receipt.side}: {receipt.model} on {receipt.device.name}, {receipt.runtime}, key {each.key}"
        console.print(shown(f"{name}{' (trusted)' if each.trusted else ''}"))
        for choice, result in zip(receipt.choices, each.replayed, strict=False):
            if result.fault is not None:
                continue
            same = f"answer {choice.index}: {result.tokens - result.differences} of {result.tokens} tokens are the same"
            console.print(f"  {same}, {result.ties} differ within rounding")
            if result.first is not None and result.first.is_rounding:
                console.print(shown(f"  {result.first.text}: within rounding"))
        for note in each.notes:
            console.print(f"  [dim]{shown(note)}[/]")
        for fault in each.faults:
            console.print(f"  [bold red]not verified:[/] {shown(fault)}")
