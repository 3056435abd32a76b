"""The C++ core: sources, and the library that is built from them (driver: constraint.native)."""
