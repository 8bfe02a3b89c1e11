/**
 * The relay hub of the field, as a model: acknowledges before anybody has the changes, forwards later, in
 * no particular order and sometimes twice at once, also back to the sender unless that names the
 * address the hub has for it, and takes numbers as doubles on the way.
 */
import type { Chance } from "./chance.ts";
import type { Machine, Network, WireReply, WireRequest } from "./network.ts";
import type { World } from "./world.ts";

export interface LegacyHubOptions {
  readonly world: World;
  readonly chance: Chance;
  readonly network: Network;
  readonly url: string;
  readonly peers: readonly string[];
}

interface Forward {
  readonly to: string;
  readonly body: Uint8Array<ArrayBuffer>;
}

const SWEEP_MS = 50;
const PAUSE_MS_MAX = 2_000;
/** How often the second sweep takes a forward that the first has in hand. */
const TAKEN_TWICE = 0.2;

export class LegacyHub implements Machine {
  readonly url: string;
  readonly isUp = true;
  readonly believesAll = true;
  readonly remembersDeletes = true;
  readonly #options: LegacyHubOptions;
  readonly #waiting = new Set<Forward>();
  #pauseMs = SWEEP_MS;
  #isSweeping = false;

  constructor(options: LegacyHubOptions) {
    this.#options = options;
    this.url = options.url;
  }

  async sync(request: WireRequest): Promise<WireReply> {
    const batch = JSON.parse(new TextDecoder().decode(request.body)) as {
      batch_id: number;
      changes: readonly { op: string; table: string; row: unknown; old_id: string | null }[] | null;
    };
    // Members it does not know are gone, and `null` becomes what Go has for it.
    const changes = batch.changes?.map(({ op, table, row, old_id: oldId }) => {
      return { op, table, row, old_id: oldId ?? "" };
    });
    const body = new TextEncoder().encode(
      JSON.stringify({ batch_id: batch.batch_id, changes: changes ?? null }),
    );
    for (const to of this.#options.peers) {
      if (to !== request.nodeUrl) this.#waiting.add({ to, body });
    }
    this.#sweepSoon();
    return answer({ applied: changes?.length ?? 0, ack: batch.batch_id });
  }

  health(): WireReply {
    return answer({ ok: true, hub: true, backup_items: 1, pending_forwards: this.#waiting.size });
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  #sweepSoon(): void {
    if (this.#isSweeping) return;
    this.#isSweeping = true;
    this.#options.world.at(this.#pauseMs, () => void this.#sweep());
  }

  async #sweep(): Promise<void> {
    const { chance } = this.#options;
    const taken = [...this.#waiting].filter(() => chance.hits(0.8));
    for (let at = taken.length - 1; at > 0; at--) {
      const other = chance.below(at + 1);
      [taken[at], taken[other]] = [taken[other]!, taken[at]!];
    }
    const twice = taken.filter(() => chance.hits(TAKEN_TWICE));
    const posts = [...taken, ...twice].map((forward) => this.#post(forward));
    const done = await Promise.all(posts);
    this.#isSweeping = false;
    this.#pauseMs = done.every(Boolean) ? SWEEP_MS : Math.min(2 * this.#pauseMs, PAUSE_MS_MAX);
    if (this.#waiting.size > 0) this.#sweepSoon();
  }

  async #post(forward: Forward): Promise<boolean> {
    const request = {
      body: forward.body,
      nodeId: "hub",
      nodeUrl: this.url,
      identity: undefined,
    };
    const exchange = await this.#options.network.post(this.url, forward.to, request, undefined);
    const isDone = exchange.kind === "replied" && exchange.raw.status === 200;
    if (isDone) this.#waiting.delete(forward);
    return isDone;
  }
}

function answer(body: unknown): WireReply {
  return { status: 200, text: JSON.stringify(body), identity: undefined };
}
