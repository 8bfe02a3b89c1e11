import { compareReduced, compareRichness, reduce, type Value } from "../../lib/protocol/values.ts";

/** Equal in kind, content and richness: neither would be chosen over the other. */
export function sameValue(left: Value, right: Value): boolean {
  return (
    left.kind === right.kind &&
    compareReduced(reduce(left), reduce(right)) === 0 &&
    compareRichness(left, right) === 0
  );
}
