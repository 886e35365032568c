"""What server options come to: heads per rank, sparse prefill on or off, row limits (INV-52, 82, 110, 116 to 118)."""

from dsv4_conformance.cases.config_case import ConfigCase, environment_of, geometry_of
from dsv4_conformance.oracle import config as oracle
from dsv4_conformance.runner.deployment import resolved
from dsv4_conformance.runner.subject import Subject
from dsv4_conformance.spec.engine_settings import OFF_WORDS
from dsv4_conformance.suite import requirement

CONFIG = ("EngineConfig",)


@requirement("INV-110", on=CONFIG, cases="config_ranks")
def test_heads_are_shared_out_over_attention_ranks(subject: Subject, case: ConfigCase) -> None:
    """INV-110: attention-TP is tp / dp (/ cp), and a rank owns H / attention-TP heads."""
    told, heads = resolved(subject, case), geometry_of(case).num_attention_heads
    sizes, size = oracle.attention_tp(case.tp, case.dp, case.cp), told["attention_tp"]
    shares = f"tp {case.tp}, dp {case.dp}, cp {case.cp}"
    subject.expect(size in sizes, f"attention_tp is {size} with {shares}, not {' or '.join(map(str, sizes))}.")
    local = told["local_heads"]
    subject.expect(
        local == heads // size, f"a rank owns {local} of {heads} heads at attention-TP {size}, not {heads // size}."
    )


@requirement("INV-52", on=CONFIG, cases="config_ranks")
def test_kernel_is_called_with_few_heads(subject: Subject, case: ConfigCase) -> None:
    """INV-52 (SHOULD): FlashMLA is called with 64 heads where the rank's fit; no kernel with more, none with fewer."""
    told, heads = resolved(subject, case), geometry_of(case).num_attention_heads
    local, padded = told["local_heads"], told["padded_heads"]
    rule = oracle.padded_heads(heads, local)
    if case.device in oracle.FLASH_MLA_DEVICES:
        subject.expect(padded == rule, f"{local} heads of {heads} are padded to {padded}, not {rule}.")
    else:
        subject.expect(local <= padded <= rule, f"{local} heads are padded to {padded}; {rule} are enough.")


@requirement("INV-82", on=CONFIG, cases="config_context_parallel")
def test_context_parallelism_switches_sparse_prefill_off_and_says_so(subject: Subject, case: ConfigCase) -> None:
    """INV-82: under cp the path is off even if forced on, with one warning about it; without cp nothing is touched."""
    told = resolved(subject, case)
    subject.expect(told["sparse_prefill"] is False, f"sparse_prefill is on with cp {case.cp}.")
    about = [text for text in told.warnings if "sparse" in text.lower() and "prefill" in text.lower()]
    refused = case.switch is not None and case.switch.lower() in OFF_WORDS
    if refused:
        subject.expect(len(about) <= 1, f"sparse prefill was off already, and {len(about)} warnings speak of it.")
    else:
        subject.expect(len(about) == 1, f"{len(about)} warnings say that sparse prefill is switched off, not one.")
        why = about[0].lower()
        subject.expect("context" in why or "cp" in why, f"the warning does not name context parallelism: {about[0]}")
    alone = resolved(subject, case.with_(cp=1, device="sm90"))
    if case.switch is not None:
        on = alone["sparse_prefill"]
        subject.expect(on is not refused, f"without context parallelism sparse_prefill is {on}, against the switch.")
    about = [text for text in alone.warnings if "context parallel" in text.lower()]
    subject.expect(not about, "a warning speaks of context parallelism, which is off.")


@requirement("INV-116", on=CONFIG, cases="config_switches")
def test_opting_out_of_sparse_prefill_is_honoured(subject: Subject, case: ConfigCase) -> None:
    """INV-116: false, 0, no and n in any case switch it off and true, 1, yes and y do not."""
    word = case.switch or "0"
    case, off = case.with_(switch=word), word.lower() in OFF_WORDS
    on = resolved(subject, case)["sparse_prefill"]
    subject.expect(on is not off, f"sparse_prefill is {on} with {environment_of(case)}.")


@requirement("INV-117", on=CONFIG, cases="config_switches")
def test_sparse_prefill_is_on_by_default(subject: Subject, case: ConfigCase) -> None:
    """INV-117 (SHOULD): where FlashMLA has the kernel and nobody opts out, extends run on it."""
    told = resolved(subject, case.with_(switch=None))
    subject.expect(told["sparse_prefill"] is True, "sparse_prefill is off although nothing is set.")


@requirement("INV-118", on=CONFIG, cases="config_ranks")
def test_paged_calls_stay_within_what_the_schedule_kernel_can_plan(subject: Subject, case: ConfigCase) -> None:
    """INV-118: on FlashMLA no paged call has more than 11673 query rows."""
    if case.device not in oracle.FLASH_MLA_DEVICES:
        case = case.with_(device="sm90")
    rows, limit = resolved(subject, case)["max_paged_rows"], oracle.LAST_ROW_OF_A_SCHEDULE
    subject.expect(rows is not None and 1 <= rows <= limit, f"paged calls may have {rows} query rows, not {limit}.")
