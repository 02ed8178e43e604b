"""nearfar verify: check the receipts of an answer, and compute the answer again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from nearfar.compiler.bundle.folder import Bundle, ExportBundle, open_any
from nearfar.compiler.bundle.signature import read_trusted_keys
from nearfar.compiler.cli.model import bundle_of, open_command_runner
from nearfar.compiler.cli.output import new_console, print_json, shown
from nearfar.compiler.formats.peft import adapter_id
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.generate import PREFILL_CHUNK
from nearfar.compiler.runtime.runner import Limits

from ..receipts.issuer import bundle_id
from ..receipts.parts import part_faults
from ..receipts.signing import read_receipt_keys
from ..receipts.verify import (
    Given,
    Verified,
    check_choices,
    check_request_hash,
    compare_texts,
    read_given,
    read_object,
    summary,
    text_of,
    tokens_of,
    unverifiable,
    verify_answer,
    verify_statement,
)
from .options import Verify

AGAIN = "the answer was not computed again"
NO_TOKENS = f"{AGAIN}: the file has no tokens; request them with return_token_ids: true"


def run(options: Verify) -> None:
    """Raises RequestError unless all receipts are verified, after it has printed what was found."""
    given, trusted = read_given(options.receipt), read_receipt_keys(options.signed_by)
    body = None if options.request is None else read_object(options.request, "the request that was answered")
    bundles = _bundles(options)
    adapters = {adapter_id(folder): folder for folder in options.adapter}
    found = [verify_statement(value, bundles, trusted, adapters) for value in given.receipts]
    for index, each in enumerate(found):
        check_choices(each, given)
        part = next((part for part in given.parts if part.receipt == index), None)
        received = body if part is None or part.request is None else part.request
        if received is None:
            each.notes.append(f"{AGAIN}; pass --request FILE")
        elif check_request_hash(each, received):
            _compute(each, received, given, options)
    if given.parts:
        _compare_parts(found, given, body)
    if options.exact:
        for each in found:
            each.faults += [f"{result.ties} differences are within rounding" for result in each.replayed if result.ties]
    _print(options, found)
    faults = [fault for each in found for fault in each.faults]
    if faults:
        raise RequestError(f"the answer is not verified: {faults[0]}", faults=faults)


def _bundles(options: Verify) -> Mapping[str, Bundle | ExportBundle]:
    """By their ids."""
    trust, bundles = read_trusted_keys(options.trust), {}
    for name in options.bundle:
        path, _ = bundle_of(name, quiet=options.json)
        bundle = open_any(path, trust)
        bundle.verify()
        bundles[bundle_id(bundle)] = bundle
    return bundles


def _compute(found: Verified, body: dict[str, object], given: Given, options: Verify) -> None:
    """With another bundle or changed tokens, there is nothing to compare."""
    # A receipt of one side covers a part of the answer's text.
    choices = given.choices if len(given.parts or given.receipts) == 1 else None
    answers = tokens_of(found, choices)
    if answers is None:
        found.notes.append(NO_TOKENS)
        return
    if (kind := unverifiable(body)) is not None:
        found.notes.append(f"{AGAIN}: the request has {kind}")
        return
    if found.receipt.adapter is not None and found.adapter is None:
        found.notes.append(f"{AGAIN}: a LoRA adapter gave it; pass --adapter FOLDER")
        return
    if found.bundle is None or any("hash" in fault for fault in found.faults):
        return
    limits = Limits(rows=PREFILL_CHUNK, adapters=0 if found.adapter is None else 1)
    runner = open_command_runner(options.runner, found.bundle, limits)
    try:
        asyncio.run(verify_answer(found, body, answers, runner))
    finally:
        runner.close()
    compare_texts(found, None if given.parts else choices)


def _compare_parts(found: Sequence[Verified], given: Given, body: dict[str, object] | None) -> None:
    """Compares the requests that the sides received with the client's, and the parts' texts with the answer's."""
    text = None if given.choices is None else text_of(given.choices[0])
    if body is None:
        found[0].notes.append("the request that was answered was not compared; pass --request FILE")
    before: Verified | None = None
    for index, part in enumerate(given.parts):
        own = None if part.receipt is None else found[part.receipt]
        for change in part.changed or ():
            (own or found[0]).notes.append(
                f"the {part.side} side received a {change} request, which its receipt covers"
            )
        if own is None:
            found[0].notes.append(
                f"the {part.side} side was broken off before it signed what it wrote from character {part.start} on"
            )
        computed = None if own is None or not own.computed else text_of(own.computed[0])
        receipt = None if before is None else before.receipt
        (own or found[0]).faults += part_faults(given.parts, index, body, text, receipt, computed)
        before = own


def _print(options: Verify, found: list[Verified]) -> None:
    if options.json:
        verified = not any(each.faults for each in found)
        print_json({"verified": verified, "receipts": [summary(each) for each in found]})
        return
    console = new_console(soft_wrap=True, highlight=False)
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
