"""Failed comparisons of values, as frameworks of tests print them, and what their numbers say."""

import pytest

from retrieval.diagnose.signatures import SignatureIndex, SignatureMatch, load_signatures

INDEX = SignatureIndex(load_signatures())


def leading(log: str) -> SignatureMatch:
    return INDEX.match(log)[0]


CATCH2 = """t/gemm.cpp:88: FAILED:
  REQUIRE( c[i] == Approx( ref[i] ).epsilon(1e-6) )
with expansion:
  2.00001f == Approx( 2.0 )
"""
WITHIN = """t/norm.cpp:4: FAILED:
  REQUIRE_THAT( y[3], WithinRel( w[3], 1e-4f ) )
with expansion:
  0.25064f and 0.25 are within 0.01% of each other
"""
GTEST = """t/sum_test.cc:57: Failure
The difference between got[i] and want[i] is 4.5, which exceeds 1e-3, where
got[i] evaluates to 7.5,
"""
GTEST_COMPARED = "t/a.cc:5: Failure\nExpected: (error) <= (bound), actual: 0.75 vs 0.004\n"
DOCTEST = """t/conv.cpp:63: ERROR: CHECK( y[k] == doctest::Approx(w[k]) ) is NOT correct!
  values: CHECK( 0 == Approx( 0.75 ) )
"""
BOOST = 't/a.cpp(9): error: in "s/c": difference{2} between got{6.0} and want{2.0} exceeds 0.1%\n'
PYTEST = """E       assert 0.50004 == 0.5 ± 1.0e-07
E         comparison failed
E         Obtained: 0.50004
E         Expected: 0.5 ± 1.0e-07
"""
UNITTEST = "AssertionError: 1.5 != 3.0 within 5 places (1.5 difference)"
TORCH = """AssertionError: Tensor-likes are not close!

Mismatched elements: 12 / 1048576 (0.0%)
Greatest absolute difference: 51.5 at index (7, 255) (up to 0.01 allowed)
Greatest relative difference: 3.1 at index (7, 255) (up to 0.01 allowed)
"""
ALL_WRONG = TORCH.replace("12 /", "1048500 /").replace("(0.0%)", "(100.0%)")
ROUNDED = TORCH.replace("51.5 at", "0.0125 at").replace("3.1 at", "0.02 at")
JAX = """AssertionError:
Not equal to tolerance rtol=0.001, atol=0.001
Mismatched elements: 40 / 80 (50%)
Max absolute difference: 12.5
Max relative difference: 0.7
"""
RUST = """thread 'gemv' panicked at src/lib.rs:90:9:
assertion `left == right` failed
  left: 6.5
 right: 1.25
"""
APPROX = """thread 'gemv' panicked at t/gemv.rs:31:5:
assert_relative_eq!(y[0], w[0], epsilon = 1e-06)
    left  = NaN
    right = 2.5
"""
JULIA = """Test Failed at t/runtests.jl:24
  Evaluated: Float32[1.0 2.0] ≈ Float32[1.0 9.0]
"""
FILES = "[E] Mismatch: a_golden.bin vs a.bin, max diff=2.5 at idx=64 (golden=2.5, out=0.0)"
STATISTICS = """  reference mean value     : -12.8069
  computed  mean value     : -12.8071
  pass tolerance           :   0.0001
  status of this test      :   fail
"""


@pytest.mark.parametrize(
    ("log", "title", "remedy"),
    [
        (CATCH2, "2.00001 instead of 2", "size of rounding"),
        (WITHIN, "0.25064 instead of 0.25, a relative error of 0.0001", "bf16"),
        (GTEST, "error is 4.5, 0.001 is allowed", "too large for rounding"),
        (GTEST_COMPARED, "error is 0.75, 0.004 is allowed", "too large for rounding"),
        (DOCTEST, "0 instead of 0.75", "was not written"),
        (BOOST, "6 instead of 2", "too large for rounding"),
        (PYTEST, "0.50004 instead of 0.5", "size of rounding"),
        (UNITTEST, "1.5 instead of 3", "one half of the expected"),
        (TORCH, "12 of 1,048,576 elements are wrong, the largest error is 51.5", "(7, 255)"),
        (ALL_WRONG, "1,048,500 of 1,048,576", "Nearly all elements"),
        (ROUNDED, "the largest error is 0.0125, 0.01 is allowed", "float64 reference"),
        (JAX, "40 of 80 elements are wrong", "A part of the elements"),
        (RUST, "6.5 instead of 1.25", "too large for rounding"),
        (APPROX, "nan instead of 2.5", "not finite"),
        (FILES, "0 instead of 2.5", "Index 64"),
        (STATISTICS, "-12.8071 instead of -12.8069", "size of rounding"),
    ],
)
def test_failed_comparison_says_what_its_numbers_mean(log: str, title: str, remedy: str) -> None:
    match = leading(log)
    assert match.signature.signal == "correctness_mismatch"
    assert title in match.title
    assert remedy in match.remedy


def test_comparison_without_numbers_keeps_its_remedy() -> None:
    match = leading(JULIA)
    assert match.title == "A test on values failed"
    assert match.remedy == match.signature.remedy


def test_few_elements_and_a_few_times_the_tolerance_are_two_causes() -> None:
    assert "Few elements are far off" in leading(TORCH).remedy
    assert "1.2 times the tolerance" in leading(ROUNDED).remedy


@pytest.mark.parametrize(
    "text",
    [
        "All tests passed (37 assertions in 4 test cases)",
        "test gemv ... ok, max diff=3.1e-07 (allowed 1e-05)",
        "REQUIRE( n == 4 ) passed",
        "values are within 0.1% in 300 runs",
    ],
)
def test_passed_comparison_is_no_failure(text: str) -> None:
    assert [m.signature.id for m in INDEX.match(text)] == []
