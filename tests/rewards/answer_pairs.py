"""(given, right) pairs of answers, in a fixed order, on which the verdicts are held against math-verify's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

Pair = tuple[str, str]

# Each row: spellings of one number that math-verify reads.
NUMBERS = (
    ("42", "42.0", "042", "$42", "$42$", "42.", "$42.00", "84/2", r"\frac{84}{2}", "42$"),
    ("-42", "-42.0", "$-42$", "-84/2"),
    ("1000", "1,000", "$1,000", "$1,000$", "1,000.00", "$1,000.00", "1000.0"),
    ("1/2", "0.5", "0.50", "50%", "50 %", r"$50\%$", r"$\frac{1}{2}$", r"\frac{1}{2}", r"$\dfrac{1}{2}$", "2/4", "50"),
    ("1/3", "2/6", "0.333333", r"$\frac{1}{3}$", "0.33333", "0.3333333"),
    ("0", "0.0", "-0", "0/5", "0%", "0.0000001"),
    ("1234567", "1,234,567", "$1,234,567", "1234567.0", "1234568"),
    ("12.5%", "0.125", "1/8", r"$\frac{1}{8}$", "12.5"),
    ("0.5%", "0.005", "5", "0.5"),
)

# Pairs that only math-verify can tell.
FORMULAS = (
    ("$x+1$", "$1+x$"),
    ("$x+1$", "$x+2$"),
    ("$x^2-1$", "$(x-1)(x+1)$"),
    ("$x^2+1$", "$(x-1)(x+1)$"),
    (r"$\frac{x}{2}$", "$x/2$"),
    (r"$\frac{x}{2}$", "$2x$"),
    ("$x=5$", "5"),
    ("5", "$x=5$"),
    ("$x=5$", "$y=5$"),
    ("$x=5$", "$x=6$"),
    ("x = 5", "5"),
    ("$2x+4=0$", "$x=-2$"),
    ("$(1,2)$", "$(1, 2)$"),
    ("$(1,2)$", "$[1,2]$"),
    ("$(1,2)$", "$(2,1)$"),
    (r"$\{1,2\}$", r"$\{2,1\}$"),
    (r"$\{1,2\}$", r"$\{1,3\}$"),
    (r"$(-\infty, 3]$", r"$(-\infty,3]$"),
    (r"$x \le 3$", r"$3 \ge x$"),
    (r"$x \le 3$", "$x < 3$"),
    (r"$\sin(\pi/6)$", r"$\frac{1}{2}$"),
    (r"$\cos(\pi/3)$", r"$\frac{1}{3}$"),
    (r"$\pi$", "3.141593"),
    (r"$\pi$", "3.14"),
    (r"$2\pi$", r"$\pi \cdot 2$"),
    (r"$\log_2(8)$", "3"),
    (r"$e^{2}$", r"$\exp(2)$"),
    (r"$\text{Paris}$", r"$\text{Paris}$"),
    (r"$\text{Paris}$", r"$\text{London}$"),
    (r"$\text{Paris}$", r"$\text{paris}$"),
    (r"$\binom{5}{2}$", "10"),
    ("$5!$", "120"),
    ("$5!$", "60"),
    ("2^10", "1024"),
    ("2*3+4", "10"),
    ("(3+5)/2", "4"),
    ("(3+5)/2", "5"),
    ("42 apples", "42"),
    ("42 apples", "43"),
    ("42cm", "42"),
    ("42 dollars", "42"),
    ("50 percent", "0.5"),
    ("5 km/h", "5"),
    ("The answer is 42.", "42"),
    ("The answer is 41.", "42"),
    ("4,25", "4.25"),
    ("4,2", "42"),
    ("1 000", "1000"),
    (r"$90^\circ$", "90"),
    (r"\boxed{42}", "42"),
    (r"\boxed{\frac{1}{2}}", "0.5"),
    (r"\(42\)", "42"),
    (r"\[x+1\]", "$1+x$"),
    ("$1\\frac{1}{2}$", "1.5"),
    ("$1, 2$", "$2, 1$"),
    ("$1, 2$", "$1, 2, 3$"),
    ("$0.1+0.2$", "0.3"),
    (r"$3 \times 10^{2}$", "300"),
    (r"$\begin{pmatrix}1&2\\3&4\end{pmatrix}$", r"$\begin{pmatrix}1&2\\3&4.0\end{pmatrix}$"),
    (r"$\begin{pmatrix}1&2\\3&4\end{pmatrix}$", r"$\begin{pmatrix}1&2\\3&5\end{pmatrix}$"),
)


def pairs() -> Iterator[Pair]:
    """More than 500: every spelling of a number against every other of its row and against other numbers, and formulas."""
    for row in NUMBERS:
        yield from product(row, row)
    for first, second in zip(NUMBERS, NUMBERS[1:] + NUMBERS[:1], strict=True):
        yield from product(first[:4], second[:3])
    for number in range(-20, 21):
        yield str(number), str(number)
        yield str(number), str(number + 1)
        yield f"{number}.0", f"${number}$"
    for number in range(1, 13):
        yield rf"$\frac{{{number}}}{{12}}$", f"{number}/12"
        yield f"{number / 8}", rf"$\frac{{{number}}}{{8}}$"
        yield rf"$\sqrt{{{2 * number * number}}}$", rf"${number}\sqrt{{2}}$"
        yield rf"$\sqrt{{{3 * number * number}}}$", rf"${number}\sqrt{{2}}$"
        yield f"$(x+{number})^2$", f"$x^2+{2 * number}x+{number * number}$"
        yield f"$2x+{number}$", f"${number}+2x$"
        yield f"$2x-{number}$", f"${number}-2x$"
    yield from FORMULAS


PAIRS = tuple(pairs())

# Written without delimiters, and read as if there were some. math-verify by itself finds nothing in most of these.
BARE = (
    ("x+1", "1+x"),
    ("x+1", "x+2"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\dfrac{3x}{4}", r"\frac{3}{4}x"),
    ("x^2-1", "(x-1)(x+1)"),
    ("2^{10}", "1024"),
    ("2^{10}", "2"),
    ("(1, 2)", "(1,2)"),
    ("1, 2", "2, 1"),
    ("1, 2", "2"),
    ("1,2,3", "1,2,4"),
    ("12:30", "12:45"),
    ("5x", "5"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("x = 1 or x = 2", "x = 2 or x = 1"),
    (r"2\pi", r"\pi \cdot 2"),
    ("5!", "120"),
    ("3 × 4", "12"),
    ("x", "$x$"),
)

# Spellings of one answer, whichever of them is the right one; no two rows are the same answer.
SPELLINGS = (
    ("1,3", "1, 3", "$1,3$", "3,1", "1 and 3", r"\{1,3\}", "$1, 3$"),
    ("-2,1", "$-2,1$", "-2, 1", "1,-2", r"\{-2, 1\}"),
    ("0,5", "0, 5", "$0,5$", "5,0"),
    ("10,20", "20, 10", "$10,20$"),
    (r"\$18.90", "18.90", "$18.90", "18.9", r"$\$18.90$"),
    (r"\$32,\!348", "32348", "32,348", r"32,\!348", "$32,348"),
    ("$y = mx + b$", "y = mx + b", "y=mx+b", "$y=mx+b$"),
    ("ab + c", "c+ab", "$ab+c$", "$ab + c$", "c + ab"),
    (r"$\frac{1}{LCs^2 + RCs + 1}$", r"\frac{1}{LCs^2 + RCs + 1}"),
    ("E = mc^2", "$E=mc^2$", "E=mc^2"),
    ("3 n", "$3 n$", "3n", "$3n$"),
    ("5 x", "5x", "$5x$"),
    ("7 apples", "7 red apples"),
    ("31 s", "31 sec", "31 secs", "31 seconds"),
    ("32 h", "32 hr", "32 hrs", "32 hours"),
    ("33 g", "33 gm", "33 grams"),
    ("6 foot", "6 feet", "6 ft"),
    ("34 inch", "34 inches", "34 in"),
    ("35 sq ft", "35 square feet"),
    ("36 USD", "36 dollars"),
    ("37 men", "37 man"),
    ("38 children", "38 child"),
    ("39 people", "39 persons"),
    ("60 mph", "60 miles/hour"),
    ("41 km", "41 Kilometern"),
    ("9 km", "9 kilometers", "9km", "9 kilometer"),
    ("15 min", "15 minutes", "15 mins"),
    ("12 lb", "12 lbs", "12 pounds"),
    ("4.5e33", r"4.5 \times 10^{33}", r"$4.5 \times 10^{33}$", "4.5 × 10^33", "4.5*10^33", "4.5E33"),
    ("1e-5", "10^{-5}", "$10^{-5}$", "10^-5", "0.00001", "1 × 10^{-5}"),
    ("6.022e23", r"6.022 \cdot 10^{23}", "6.022·10^23"),
    ("pi/2", r"\frac{\pi}{2}", "π/2", r"$\frac{\pi}{2}$", r"\pi/2"),
    ("2pi", r"2\pi", "2π", "2 pi", r"$2\pi$", "2*pi"),
    ("√2", r"\sqrt{2}", r"\sqrt2", "sqrt(2)", "sqrt 2", "√(2)"),
    ("2√2", r"2\sqrt{2}", "2*sqrt(2)", r"\sqrt{8}", "√8"),
    ("√(x+1)", r"\sqrt{x+1}", "sqrt(x+1)"),
    ("∞", r"\infty", "infinity", r"$\infty$"),
    ("(-∞, 3]", r"(-\infty,3]", r"$(-\infty, 3]$"),
    ("x ≤ 4", r"x \le 4", r"$x \leq 4$", "(-∞,4]", r"$(-\infty, 4]$", "4 ≥ x", "x ∈ (-∞,4]"),
    ("1 < x ≤ 2", "(1,2]", r"$1 < x \le 2$"),
    (
        "x = 1/2, x = (-1±√13)/4",
        r"$$\boxed{x = \frac{1}{2}, x = \frac{-1 \pm \sqrt{13}}{4}}$$",
        r"x = \frac{1}{2}, x = \frac{-1 \pm \sqrt{13}}{4}",
        r"$\frac{1}{2}, \frac{-1 \pm \sqrt{13}}{4}$",
    ),
    ("±3", r"\pm 3", "3, -3", r"$\{-3, 3\}$"),
    ("2 ± √3", r"2+\sqrt{3}, 2-\sqrt{3}", r"$2 \pm \sqrt{3}$"),
    ("-5", "- 5", "(-5)", "−5"),
    ("A", "a", "(A)", "(a)"),
    ("the mean", "mean", "The mean"),
    ("1 1/2", r"1\frac12", r"1\frac{1}{2}", "1.5", "3/2", r"1 \frac{1}{2}", "1½"),
    ("x²", "x^2", "$x^2$"),
)

# Neither is the other, whichever is the right one.
DIFFERENT = (
    ("7 apples", "7 oranges"),
    ("x = 1/2, x = (-1±√13)/4", "x = 1/2"),
    ("x = 1/2, x = (-1±√13)/4", "x = 1/2, x = (-1±√11)/4"),
    ("x ≤ 4", "(-∞,4)"),
    ("x ≤ 4", "[4,∞)"),
    ("(5)", "-5"),
    ("(A)", "(B)"),
    ("the mean", "the median"),
    ("5 km", "5 m"),
    ("5 km", "6 km"),
    ("5 hours", "5 minutes"),
    ("5 mi", "5 minutes"),
    ("5 m", "5 miles"),
    ("5 ft", "5 square feet"),
    ("5 cats", "5 dogs"),
    ("3 n", "3"),
    ("3 n", "4 n"),
    ("1,3", "13"),
    ("1,3", "1"),
    ("1,3", "1,4"),
    ("1,000", "1"),
    ("1,234", "1.234"),
    (r"\$18.90", "18.80"),
    (r"\$32,\!348", "32"),
    ("y = mx + b", "y = mx - b"),
    ("ab + c", "ab + d"),
    ("4.5e33", "4.5e34"),
    ("1e-7", r"2 \times 10^{-7}"),
    ("1e-7", "0"),
    ("pi/2", "pi/3"),
    ("√2", "√3"),
    ("√2", "2"),
    ("∞", r"-\infty"),
    (r"1\frac12", r"1\frac13"),
    (r"1\frac12", "1/2"),
    ("the answer is mx", "the answer is my"),
)

# (given, right) of which only this order is sure: a right answer with a comma is two numbers, one without is none.
ONE_WAY = (
    (("-2.1", "-2,1"), False),
    (("1.3", "1,3"), False),
    (("0.5", "0,5"), False),
    (("1,5", "1.5"), False),
    (("0,5", "1/2"), False),
    (("$3,5$", "3.5"), False),
    (("3, 5", "3.5"), False),
    (("0,75", "3/4"), True),
    (("2,74", "2.74"), True),
    (("3,14", "3.14"), True),
    (("1.05", "1,05"), True),
    (("5 km", "5"), True),
    (("5", "5 km"), True),
    (("3 m", "3"), True),
    (("42 apples", "42"), True),
)
