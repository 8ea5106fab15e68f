"""mpmd-insert-nameless-clone-of-negligible-ops"""

from import_programs import check

PASS = "func.func(mpmd-insert-nameless-clone-of-negligible-ops)"


def test_constants_are_repeated_outside_except_for_the_return() -> None:
    check(
        """
        func.func @main(%a: !T) -> (!T, !T) attributes {topology = #topo} {
          %0:2 = mpmd.named_computation<"k"> (%a) (%x: !T) {
            %c = stablehlo.constant dense<5.0> : !T
            %i = stablehlo.iota dim = 0 : !T
            mpmd.return %c, %i : !T, !T
          } : (!T) -> (!T, !T)
          %1 = stablehlo.add %0#0, %a : !T
          return %1, %0#1 : !T, !T
        }
        """,
        PASS,
        """
        func.func @main(%a: !T) -> (!T, !T) attributes {topology = #topo} {
          %0:2 = mpmd.named_computation<"k"> (%a) (%x: !T) {
            %c = stablehlo.constant dense<5.0> : !T
            %i = stablehlo.iota dim = 0 : !T
            mpmd.return %c, %i : !T, !T
          } : (!T) -> (!T, !T)
          %c2 = stablehlo.constant dense<5.0> : !T
          %i2 = stablehlo.iota dim = 0 : !T
          %1 = stablehlo.add %c2, %a : !T
          return %1, %0#1 : !T, !T
        }
        """,
    )


def test_one_clone_per_result_even_if_it_is_unused() -> None:
    check(
        """
        func.func @main() -> !T attributes {topology = #topo} {
          %0:2 = mpmd.named_computation<"k"> () () {
            %c = stablehlo.constant dense<5.0> : !T
            mpmd.return %c, %c : !T, !T
          } : () -> (!T, !T)
          return %0#0 : !T
        }
        """,
        PASS,
        """
        func.func @main() -> !T attributes {topology = #topo} {
          %0:2 = mpmd.named_computation<"k"> () () {
            %c = stablehlo.constant dense<5.0> : !T
            mpmd.return %c, %c : !T, !T
          } : () -> (!T, !T)
          %1 = stablehlo.constant dense<5.0> : !T
          %2 = stablehlo.constant dense<5.0> : !T
          return %0#0 : !T
        }
        """,
    )


def test_the_return_of_an_enclosing_computation_takes_the_clone() -> None:
    check(
        """
        func.func @main() -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"out"> () () {
            %1 = mpmd.named_computation<"in"> () () {
              %c = stablehlo.constant dense<5.0> : !T
              mpmd.return %c : !T
            } : () -> !T
            mpmd.return %1 : !T
          } : () -> !T
          %2 = stablehlo.abs %0 : !T
          return %2 : !T
        }
        """,
        PASS,
        """
        func.func @main() -> !T attributes {topology = #topo} {
          %0 = mpmd.named_computation<"out"> () () {
            %1 = mpmd.named_computation<"in"> () () {
              %c = stablehlo.constant dense<5.0> : !T
              mpmd.return %c : !T
            } : () -> !T
            %3 = stablehlo.constant dense<5.0> : !T
            mpmd.return %3 : !T
          } : () -> !T
          %4 = stablehlo.constant dense<5.0> : !T
          %2 = stablehlo.abs %4 : !T
          return %2 : !T
        }
        """,
    )
