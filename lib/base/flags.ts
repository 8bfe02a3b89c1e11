/**
 * The words of a command line taken apart: `--flag value`, `--flag=value`, and the same with one
 * dash, as programs written in Go have it. Every mistake is collected, none thrown, so that a
 * person sees all of them at once. What a value means is not decided here.
 */

/** One flag as the lexer must know it; who reads its value decides what it may be. */
export interface FlagSpec {
  /** As typed, without dashes: `batch-ms`. */
  readonly name: string;
  /** How the value is called in the usage; undefined for a switch, which takes none. */
  readonly value: string | undefined;
  /** May be given more than once. */
  readonly repeats?: boolean;
}

/** One wrong thing in what a person wrote: where, what stands there, and what would be right. */
export interface Mistake {
  /** The place, spelt as the person spelt it: `--batch-ms`, `HOOK_SYNC_BATCH_MS`, `node.toml: batch-ms`. */
  readonly where: string;
  /** What stands there; undefined where nothing does. */
  readonly value: string | undefined;
  /** What would be right: ``expected a whole number from 1 to 60000``. */
  readonly right: string;
}

/** A command line taken apart. What could not be understood is in `mistakes` and nowhere else. */
export interface FlagWords {
  /** Values by flag name, in the order given; a bare switch has the value `true`. */
  readonly values: ReadonlyMap<string, readonly string[]>;
  /** Words that belong to no flag, in order. */
  readonly words: readonly string[];
  readonly mistakes: readonly Mistake[];
}

/** Sorts `argv` into flags, words and mistakes. After `--` everything is a word. */
export function readFlags(argv: readonly string[], specs: readonly FlagSpec[]): FlagWords {
  const known = new Map(specs.map((spec) => [spec.name, spec]));
  const values = new Map<string, string[]>();
  const words: string[] = [];
  const mistakes: Mistake[] = [];

  for (let at = 0; at < argv.length; at++) {
    const word = argv[at]!;
    if (word === "--") {
      words.push(...argv.slice(at + 1));
      break;
    }
    const parts = /^--?([^-=][^=]*)(?:=([\s\S]*))?$/.exec(word);
    if (parts === null) {
      words.push(word);
      continue;
    }
    const [, name = "", inline] = parts;
    const where = word.slice(0, word.length - (inline === undefined ? 0 : inline.length + 1));
    const spec = known.get(name);
    if (spec === undefined) {
      // Its value, if it has one, is swallowed with it: one mistake, one message.
      const next = argv[at + 1];
      if (inline === undefined && next !== undefined && !isFlag(next)) at++;
      mistakes.push({ where, value: undefined, right: unknownName(where, "flag", name, known) });
      continue;
    }
    let value = inline;
    if (value === undefined && spec.value === undefined) value = "true";
    if (value === undefined) {
      const next = argv[at + 1];
      if (next === undefined || isFlag(next)) {
        mistakes.push({
          where,
          value: undefined,
          right: `expected a value: ${where} ${spec.value}`,
        });
        continue;
      }
      value = next;
      at++;
    }
    const given = values.get(name);
    if (given === undefined) values.set(name, [value]);
    else if (spec.repeats) given.push(value);
    else if (given[0] !== value) {
      mistakes.push({ where, value, right: `given before as ${quote(given[0]!)}: keep one` });
    }
  }
  return { values, words, mistakes };
}

/** A value that begins with a dash must be written `--flag=-value`: more often the value was forgotten. */
function isFlag(word: string): boolean {
  return /^--?[A-Za-z]/.test(word);
}

/** `no such flag; did you mean --batch-ms?` */
export function unknownName(
  typed: string,
  kind: string,
  name: string,
  known: Iterable<string> | ReadonlyMap<string, unknown>,
): string {
  const near = nearest(name, known instanceof Map ? known.keys() : (known as Iterable<string>));
  if (near === undefined) return `no such ${kind}`;
  return `no such ${kind}; did you mean ${typed.slice(0, typed.length - name.length)}${near}?`;
}

/** The known name most like `name`, or undefined where none is like it at all. */
export function nearest(name: string, known: Iterable<string>): string | undefined {
  let best: string | undefined;
  // A third of the letters wrong is still a typing mistake; more is another word.
  let bestDistance = Math.max(1, Math.floor(name.length / 3)) + 1;
  for (const candidate of known) {
    const distance = editDistance(name.toLowerCase().replaceAll("_", "-"), candidate.toLowerCase());
    if (distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}

/** Insertions, deletions, replacements and swaps of neighbours that turn one word into the other. */
function editDistance(a: string, b: string): number {
  let beforePrevious: number[] = [];
  let previous = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let row = 1; row <= a.length; row++) {
    const current = [row];
    for (let column = 1; column <= b.length; column++) {
      const same = a[row - 1] === b[column - 1];
      let cost = Math.min(
        previous[column]! + 1,
        current[column - 1]! + 1,
        previous[column - 1]! + (same ? 0 : 1),
      );
      if (row > 1 && column > 1 && a[row - 1] === b[column - 2] && a[row - 2] === b[column - 1]) {
        cost = Math.min(cost, beforePrevious[column - 2]! + 1);
      }
      current.push(cost);
    }
    beforePrevious = previous;
    previous = current;
  }
  return previous[b.length]!;
}

/** A value as it is shown in a message: quoted, without control characters, of bounded length. */
export function quote(value: string): string {
  const shown = value.length > 200 ? `${value.slice(0, 200)}…` : value;
  return JSON.stringify(shown);
}
