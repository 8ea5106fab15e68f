"""Inlining from the top gives what inlining callees first does, in time that grows with what comes of it."""

from __future__ import annotations

from util import check

TYPE = "tensor<4xf32>"


def test_constants_of_callees_in_front_stay_there() -> None:
    check(
        f"""
        func.func @main(%a: {TYPE}) -> {TYPE} {{
          %0 = func.call @f(%a) : ({TYPE}) -> {TYPE}
          %1 = func.call @g(%0) : ({TYPE}) -> {TYPE}
          return %1 : {TYPE}
        }}
        func.func private @f(%a: {TYPE}) -> {TYPE} {{
          %0 = stablehlo.constant dense<1.0> : {TYPE}
          %1 = stablehlo.constant dense<2.0> : {TYPE}
          %2 = stablehlo.clamp %0, %a, %1 : {TYPE}
          return %2 : {TYPE}
        }}
        func.func private @g(%a: {TYPE}) -> {TYPE} {{
          %0 = stablehlo.constant dense<3.0> : {TYPE}
          %1 = stablehlo.constant dense<4.0> : {TYPE}
          %2 = stablehlo.clamp %0, %a, %1 : {TYPE}
          return %2 : {TYPE}
        }}
        """,
        "inline{default-pipeline=canonicalize max-iterations=4}",
        f"""
        func.func @main(%a: {TYPE}) -> {TYPE} {{
          %0 = stablehlo.constant dense<4.0> : {TYPE}
          %1 = stablehlo.constant dense<3.0> : {TYPE}
          %2 = stablehlo.constant dense<1.0> : {TYPE}
          %3 = stablehlo.constant dense<2.0> : {TYPE}
          %4 = stablehlo.clamp %2, %a, %3 : {TYPE}
          %5 = stablehlo.clamp %1, %4, %0 : {TYPE}
          return %5 : {TYPE}
        }}
        """,
    )
