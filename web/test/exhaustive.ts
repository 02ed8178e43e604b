// Tests with more cases than `make test` has time for: tests/web/test_typescript_cases.py runs their files with all of
// them, in `make test-all`.

export const isExhaustive = process.env.NEARFAR_ALL_VARIANTS !== undefined;

/** One of ``count`` cases each, or all of them. ``first`` is the index of the first one. */
export function oneOf<T>(count: number, cases: readonly T[], first = 0): readonly T[] {
  return isExhaustive ? cases : cases.filter((_, index) => index % count === first % count);
}

/** The usual number of runs of a property, or the exhaustive one. */
export const runs = (usual: number, all: number): number => (isExhaustive ? all : usual);
