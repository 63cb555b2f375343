//! Facts of the kernel that the rings rely on, and the rules of DESIGN.md 4.2, on the real kernel.
