/**
 * Values as people write them, made into what the program works with. Each reader answers with the
 * value or with what would be right, in words that go straight into a message.
 */

/** The value, or what would be right in its place. */
export type Read<T> = { readonly value: T } | { readonly right: string };

/** Bytes: the binary units in which people give sizes. */
export const KIB = 1024;
/** Bytes, too. */
export const MIB = 1024 * KIB;

/** A whole number, of the unit named in the message. */
export function readCount(unit: string, min: number, max: number): (text: string) => Read<number> {
  return (text) => {
    const count = /^\d{1,15}$/.test(text) ? Number(text) : Number.NaN;
    if (count >= min && count <= max) return { value: count };
    return { right: `expected a whole number of ${unit} from ${min} to ${max}` };
  };
}

const SIZE_UNITS: Readonly<Record<string, number>> = {
  "": 1,
  b: 1,
  kb: 1_000,
  mb: 1_000_000,
  gb: 1_000_000_000,
  kib: KIB,
  mib: MIB,
  gib: 1024 * MIB,
};

/** Bytes: `134217728`, `128MiB`, `100MB`. */
export function readSize(min: number, max: number): (text: string) => Read<number> {
  return (text) => {
    const parts = /^(\d{1,15})\s*([A-Za-z]*)$/.exec(text);
    const unit = SIZE_UNITS[parts?.[2]?.toLowerCase() ?? "?"];
    if (parts === null || unit === undefined) {
      return { right: "expected a number of bytes, such as 134217728 or 128MiB" };
    }
    const bytes = Number(parts[1]) * unit;
    if (bytes >= min && bytes <= max) return { value: bytes };
    if (max === Number.MAX_SAFE_INTEGER) return { right: `expected at least ${min} bytes` };
    return { right: `expected from ${min} to ${max} bytes` };
  };
}

/** One of a few words, in any case. */
export function readOneOf<T extends string>(...choices: readonly T[]): (text: string) => Read<T> {
  return (text) => {
    const choice = choices.find((known) => known === text.toLowerCase());
    return choice === undefined ? { right: `expected ${choices.join(" or ")}` } : { value: choice };
  };
}

/** `true`, `false`, `1` or `0`. */
export function readSwitch(text: string): Read<boolean> {
  const word = text.toLowerCase();
  if (word === "true" || word === "1") return { value: true };
  if (word === "false" || word === "0") return { value: false };
  return { right: "expected true or false" };
}
