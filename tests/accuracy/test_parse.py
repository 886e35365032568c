import pytest

from dsv4_conformance.accuracy.parse import aime, gsm8k, last_boxed, normal


@pytest.mark.parametrize(
    ("text", "answer", "level"),
    [
        # as asked for
        (r"so \boxed{70}.", "70", 0),
        (r"\boxed{070}", "70", 0),
        (r"\boxed{000}", "0", 0),
        (r"\boxed{ 70 }", "70", 0),
        (r"$\boxed{$70$}$", "70", 0),
        (r"\boxed{\text{70}}", "70", 0),
        (r"\boxed{\mathbf{\text{70}}}", "70", 0),
        (r"\boxed 70 then \fbox{71}", "71", 0),
        (r"first \boxed{12}, no: \boxed{13}", "13", 0),
        (r"\boxed{13}, to be put in \boxed{}", "13", 0),
        # the last box counts even when it holds no integer: wrong, not another box's answer
        (r"\boxed{12} or \boxed{\frac{1}{2}}", r"\frac{1}{2}", 0),
        (r"\boxed{1,234}", "1234", 0),
        (r"\boxed{-3}", "-3", 0),
        (r"\boxed{70 or 71}", "70 or 71", 0),
        # one number in the box, with something around it
        (r"\boxed{n=70}", "70", 1),
        (r"\boxed{m + n = 70}", "70", 1),
        (r"\boxed{70^\circ}", "70", 1),
        (r"\boxed{70^{\circ}}", "70", 1),
        # no box
        ("The answer is 70.", "70", 2),
        ("The final answer: **588**", "588", 2),
        ("The answer is 3. No. The answer is 4.", "4", 2),
        ("We get **70**", "70", 3),
        ("$3$ and $4$ give\n$70$", "70", 4),
        ("So x + y = 70.", "70", 4),
        # nothing that is meant as an answer
        ("", None, -1),
        ("There are 30 cases. I could not finish them.", None, -1),
        ("So it is 1234", None, -1),
        (r"\boxed{}", None, -1),
    ],
)
def test_aime_answers(text: str, answer: str | None, level: int) -> None:
    found = aime(text)
    assert (found.answer, found.fallback) == (answer, level)


@pytest.mark.parametrize(
    ("text", "answer", "level"),
    [
        ("5+13=18\n#### 18", "18", 0),
        ("#### $1,234.00\nGlad to help with 3 more.", "1234", 0),
        ("#### 5\nWait.\n#### 6", "6", 0),
        ("#### **42**", "42", 0),
        ("#### 70%", "70", 0),
        ("#### -5", "-5", 0),
        ("#### \\$18", "18", 0),
        ("#### 0.50", "0.5", 0),
        ("#### The sum is 18", "18", 3),
        (r"so \boxed{18}", "18", 1),
        (r"#### none, but \boxed{1{,}800}", "1800", 1),
        ("The answer is 18. It took 3 days.", "18", 2),
        ("The answer is: $18", "18", 2),
        ("5 and 13 make 18 eggs", "18", 3),
        ("He needs 1,000,000.", "1000000", 3),
        ("It is impossible to say.", None, -1),
        ("", None, -1),
        ("1" * 60, None, -1),
    ],
)
def test_gsm8k_answers(text: str, answer: str | None, level: int) -> None:
    found = gsm8k(text)
    assert (found.answer, found.fallback) == (answer, level)


@pytest.mark.parametrize(
    ("written", "plain"), [("070", "70"), ("70.0", "70"), ("0.10", "0.1"), ("-0", "0"), ("00", "0"), ("-007", "-7")]
)
def test_normal_form(written: str, plain: str) -> None:
    assert normal(written) == plain


def test_a_box_that_is_not_closed_is_none() -> None:
    assert last_boxed(r"\boxed{1} and \boxed{2") == "1"
    assert last_boxed(r"\boxed{a{b}c}") == "a{b}c"
    assert last_boxed("boxed{1}") is None


@pytest.mark.parametrize("read", [aime, gsm8k])
@pytest.mark.parametrize("unit", ["\\boxed{", "9", "**", "answer ", "$", "#### ", "1,111"])
def test_long_replies_take_linear_time(read: object, unit: str) -> None:
    assert callable(read)
    read(unit * 20_000)  # a quadratic rule would take minutes here
