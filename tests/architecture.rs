//! The rules of ARCHITECTURE.md that a machine can check.
