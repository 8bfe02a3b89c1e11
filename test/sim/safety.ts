/**
 * What must hold at every moment, whatever the faults (phase one of a simulation):
 *
 *   X1  Nothing that was answered or acknowledged is lost: the node that said so holds that version or
 *       a higher one, as a row, as a tombstone, or parked with its reason; also after a crash.
 *   X2  A watermark never passes what the peer acknowledged.
 *   X3  What every peer has acknowledged leaves the log: at once where that is all of it, and otherwise
 *       as soon as nobody has written through the node for a second (it is cheaper then: lib/store/peers.ts).
 *   X4  A received row is not captured again (among ours, where nothing is announced).
 *   X5  Every local write has a version above what it replaced and above its tombstone.
 *   X6  The syncing flag is down between transactions.
 *   X7  Nobody is filled without need: network faults and crashes alone never start it.
 *   X8  Whoever came back with an old file, or another one, is filled by every peer that can tell by what
 *       the two of them had acknowledged. Comparing would bring the rows, too, but later.
 */
import type { Database } from "bun:sqlite";
import { hashChange, type Mark, parseIdentity } from "../../lib/protocol/identity.ts";
import type { Move } from "../../lib/store/store.ts";
import type { Network, WireRequest } from "./network.ts";
import type { AnsweredRow, OurNode, Running } from "./our-node.ts";
import { Finding, type World } from "./world.ts";

/** Where a row stands on one node: undefined where it never was. */
type Standing = number | undefined;

interface NodeRecord {
  /** X1, by `table/id`. */
  held: Map<string, number>;
  /** X5: what stood there before another program wrote, until it is settled. */
  unsettled: Map<string, Standing>;
  /** X4: rows that were written here. */
  readonly written: Set<string>;
  /** X2, by peer: what was refused may be passed too. */
  readonly refused: Map<string, number>;
  /** X3: when something was last written through the node itself. */
  writtenMs: number;
  /** X7: it came back with another file than peers had known it by. */
  hasOtherFile: boolean;
  /** X8: whom it has to fill, and what that can be told by. */
  readonly owes: Map<OurNode, Owed>;
  /** When it said last that it fills these. */
  readonly fillsMs: Map<OurNode, number>;
  /** A whole table was announced; what is in the log then says nothing. */
  hasAnnounced: boolean;
}

/** What stood in the tables before another program wrote. */
export interface Before {
  readonly standings: ReadonlyMap<string, Standing>;
  readonly contents: ReadonlyMap<string, string>;
  readonly newest: number;
  readonly tables: ReadonlySet<string>;
}

interface Owed {
  /** Its file is known by another name. */
  readonly isOther: boolean;
  /** It lost what it had acknowledged; how far it has, by batches that went on from there, come again. */
  lost: { readonly ofDb: string; through: number } | undefined;
  /** It lost what it had sent up to here, and its own log shows it that. */
  sent: { readonly ofDb: string; readonly mark: Mark } | undefined;
}

interface SafetyOptions {
  readonly world: World;
  readonly network: Network;
  /** No node of another make is there. */
  readonly isOursOnly: boolean;
}

/** What was promised of one file at one moment. */
export interface Remembered {
  readonly held: ReadonlyMap<string, number>;
  readonly unsettled: ReadonlyMap<string, Standing>;
  readonly written: ReadonlySet<string>;
}

/** After so long without a write a node is at rest (lib/store/write-queue.ts). */
const REST_MS = 1_000;

/** From the word that a peer is filled to the first entry for it. */
const BEGINS_MS_MAX = 50;

export class Safety {
  readonly #options: SafetyOptions;
  readonly #records = new Map<OurNode, NodeRecord>();

  constructor(options: SafetyOptions) {
    this.#options = options;
  }

  #of(node: OurNode): NodeRecord {
    let record = this.#records.get(node);
    if (record === undefined) {
      record = {
        held: new Map(),
        unsettled: new Map(),
        written: new Set(),
        refused: new Map(),
        writtenMs: Number.NEGATIVE_INFINITY,
        hasOtherFile: false,
        owes: new Map(),
        fillsMs: new Map(),
        hasAnnounced: false,
      };
      this.#records.set(node, record);
    }
    return record;
  }

  // ── X1 ──────────────────────────────────────────────────────────────────────────────────────

  /** The version of a row here, or of its tombstone if that is higher. */
  versionAt(db: Database, table: string, id: string): Standing {
    const row = db
      .query<{ row: number | null; stone: number | null }, [string, string, string]>(
        `SELECT (SELECT CASE typeof(updated_at) WHEN 'integer' THEN updated_at ELSE -1 END FROM ${table} WHERE id = ?) AS row,
                (SELECT version FROM _hooksync_tombstones WHERE tbl = ? AND id = ?) AS stone`,
      )
      .get(id, table, id)!;
    if (row.row === null) return row.stone ?? undefined;
    return Math.max(row.row, row.stone ?? -Infinity);
  }

  /** What a write of the node itself must come out above; another program's stamp may still be lowered. */
  floorOf(node: OurNode, db: Database, table: string, id: string): Standing {
    if (this.#of(node).unsettled.has(`${table}/${id}`)) return undefined;
    return this.versionAt(db, table, id);
  }

  #promise(node: OurNode, key: string, version: number): void {
    const { held } = this.#of(node);
    if (version > (held.get(key) ?? -Infinity)) held.set(key, version);
  }

  /**
   * The highest version of each row that any node of ours promised to hold. What one promised after the
   * backup that it came back from, and nobody else, was lost with its file.
   */
  get promised(): ReadonlyMap<string, number> {
    const promised = new Map<string, number>();
    for (const { held } of this.#records.values()) {
      for (const [key, version] of held) {
        if (version > (promised.get(key) ?? -Infinity)) promised.set(key, version);
      }
    }
    return promised;
  }

  /** The same of one node. */
  promisedBy(node: OurNode): ReadonlyMap<string, number> {
    return this.#of(node).held;
  }

  // ── Files that come and go ──────────────────────────────────────────────────────────────────

  /** What is promised of the file as it is now. */
  remember(node: OurNode): Remembered {
    const { held, unsettled, written } = this.#of(node);
    return { held: new Map(held), unsettled: new Map(unsettled), written: new Set(written) };
  }

  /** The node's file is now the one of which this was remembered. */
  changedFile(node: OurNode, remembered: Remembered): void {
    const record = this.#of(node);
    record.held = new Map(remembered.held);
    record.unsettled = new Map(remembered.unsettled);
    for (const key of remembered.written) record.written.add(key);
    record.hasOtherFile = true;
  }

  /** X8: the node's file was just changed for another; whoever must notice has to fill it. */
  owes(node: OurNode, others: readonly OurNode[]): void {
    const file = node.readStanding();
    for (const other of others) {
      this.#of(other).owes.delete(node);
      const theirs = other.readStanding();
      const known = theirs.peers.get(node.url);
      if (known === undefined || known.dbId === null || theirs.dbId === undefined) continue;
      const isOther = known.dbId !== file.dbId;
      // A fill that begins just now has all in it.
      const saidMs = this.#of(other).fillsMs.get(node) ?? Number.NEGATIVE_INFINITY;
      const isBeginning = known.isFillAhead || this.#options.world.nowMs - saidMs < BEGINS_MS_MAX;
      const through = file.marks.get(theirs.dbId)?.batchId ?? 0;
      const hasLost = !isBeginning && known.prev > through;
      const lost = hasLost ? { ofDb: theirs.dbId, through } : undefined;
      const mark = theirs.marks.get(file.dbId ?? "");
      const isBehind = mark !== undefined && mark.batchId > file.newest;
      const sent = isBehind ? { ofDb: file.dbId!, mark } : undefined;
      if (!isOther && lost === undefined && sent === undefined) continue;
      this.#of(other).owes.set(node, { isOther, lost, sent });
      const why = JSON.stringify({ isOther, lost, sent, prev: known.prev });
      this.#options.world.trace(`${other.url} must fill ${node.url}: ${why}`);
    }
    // It remembers nothing of what it owed.
    this.#of(node).owes.clear();
  }

  /** What this node is owed may have become less. */
  #forgive(node: OurNode, change: (owed: Owed, by: OurNode) => void): void {
    for (const [by, { owes }] of this.#records) {
      const owed = owes.get(node);
      if (owed === undefined) continue;
      change(owed, by);
      if (!owed.isOther && owed.lost === undefined && owed.sent === undefined) owes.delete(node);
    }
  }

  /**
   * Batches that went on from what this node still has may have brought it, late, all that it had lost, before
   * anybody noticed: then nobody can tell any more, and nobody need.
   */
  #gotAgain(node: OurNode, request: WireRequest): void {
    const { db, prev = 0 } = parseIdentity(request.identity) ?? {};
    const { batch_id: batchId } = readBatch(request);
    this.#forgive(node, (owed, by) => {
      const { lost } = owed;
      if (lost?.ofDb !== db || lost === undefined || prev > lost.through) return;
      lost.through = Math.max(lost.through, batchId);
      const known = by.readStanding().peers.get(node.url)?.prev ?? 0;
      if (lost.through >= known) owed.lost = undefined;
    });
  }

  /**
   * A restored node may make the very change anew that was its last one: of the same row, at the same version.
   * For those two nothing was lost, as far as anybody can tell.
   */
  #madeAgain(by: OurNode, request: WireRequest): void {
    const { db, prev = 0 } = parseIdentity(request.identity) ?? {};
    for (const [node, { sent }] of this.#of(by).owes) {
      if (sent?.ofDb !== db || sent === undefined || prev >= sent.mark.batchId) continue;
      // What comes late of the file before says nothing.
      if (request.file !== this.#options.network.fileOf(node.url)) continue;
      const isIn = changesOf(request).some(
        ({ op, table, id, version }) => hashChange(op, table, id, version) === sent.mark.hash,
      );
      if (isIn && readBatch(request).batch_id >= sent.mark.batchId) {
        this.#forgive(node, (owed, other) => {
          if (other === by) owed.sent = undefined;
        });
      }
    }
  }

  /** X8, in the end. */
  checkOwed(node: OurNode): void {
    const { dbId } = node.readStanding();
    for (const [peer, { isOther, lost, sent }] of this.#of(node).owes) {
      // It was restored itself and became another file, to which nothing was acknowledged: comparing is left.
      if (!isOther && sent === undefined && lost?.ofDb !== dbId) continue;
      throw new Finding(`${node.url} never filled ${peer.url}, whose file is not what it was (X8)`);
    }
  }

  /** X7 */
  filling(node: OurNode, peer: OurNode | undefined, reason: string): void {
    if (peer) {
      this.#of(node).owes.delete(peer);
      this.#of(node).fillsMs.set(peer, this.#options.world.nowMs);
    }
    // The entries of a fill take the places of those that a restored log lost: nobody can tell any more.
    this.#forgive(node, (owed) => {
      owed.sent = undefined;
    });
    if (reason === "it is new" || peer === undefined || this.#of(peer).hasOtherFile) return;
    this.#find(`${node.url} fills ${peer.url}, which lost nothing: ${reason} (X7)`);
  }

  /** A REST write was answered with this row. `floor`: what stood there when it was asked for. */
  answered(node: OurNode, table: string, row: AnsweredRow, floor: Standing): void {
    const key = `${table}/${row.id}`;
    this.#of(node).written.add(key);
    const version =
      row.updated_at ?? this.versionAt(node.running!.store.db, table, row.id) ?? Number.NaN;
    if (Number.isNaN(version)) {
      this.#find(`${node.url} answered and has no ${key}`);
      return;
    }
    if (floor !== undefined && version <= floor) {
      this.#find(`${node.url} wrote ${key} at ${version}, not above ${floor} (X5)`);
    }
    this.#promise(node, key, version);
    this.checkHeld(node, node.running!.store.db, key);
  }

  removed(node: OurNode, table: string, id: string, floor: Standing): void {
    const key = `${table}/${id}`;
    this.#of(node).written.add(key);
    if (floor !== undefined) this.#promise(node, key, floor);
    this.checkHeld(node, node.running!.store.db, key);
  }

  /** A batch was acknowledged. */
  acknowledged(node: OurNode, request: WireRequest): void {
    const { db } = node.running!.store;
    const { written, hasAnnounced } = this.#of(node);
    this.#gotAgain(node, request);
    this.#madeAgain(node, request);
    for (const { op, table, id, version } of changesOf(request)) {
      if (id === undefined) continue;
      const key = `${table}/${id}`;
      if (version !== undefined) this.#promise(node, key, version);
      this.checkHeld(node, db, key);
      if (this.#options.isOursOnly && op !== "DELETE" && !written.has(key) && !hasAnnounced) {
        const captured = db
          .query<{ id: number }, [string, string]>(
            `SELECT change_id AS id FROM _changes
             WHERE table_name = ? AND row_id = ? AND op <> 'DELETE' AND only_for IS NULL`,
          )
          .get(table, id);
        if (captured) this.#find(`${node.url} captured ${key}, which it received (X4)`);
      }
    }
  }

  checkHeld(node: OurNode, db: Database, key: string): void {
    const version = this.#of(node).held.get(key);
    if (version === undefined) return;
    const [table, id] = splitKey(key);
    const standing = this.versionAt(db, table, id);
    if (standing !== undefined && standing >= version) return;
    if (this.#of(node).unsettled.has(key)) return;
    if (!this.isParked(db, table, id)) {
      this.#find(`${node.url} promised ${key} at ${version} and has ${standing} (X1)`);
    }
  }

  isParked(db: Database, table: string, id: string): boolean {
    return (
      db
        .query(
          "SELECT 1 FROM _dead_letter WHERE direction = 'received' AND table_name = ? AND row_id = ?",
        )
        .get(table, id) !== null
    );
  }

  /** After a start: everything ever promised here. */
  checkOpened(node: OurNode): void {
    const running = node.running!;
    this.#checkSettled(node, running);
    for (const key of this.#of(node).held.keys()) this.checkHeld(node, running.store.db, key);
    this.checkMoved(node, running, this.#options.world.nowMs);
  }

  // ── X2, X3 ──────────────────────────────────────────────────────────────────────────────────

  moved(node: OurNode, move: Move): void {
    const { refused } = this.#of(node);
    if (move.refusal) {
      refused.set(move.peer, Math.max(refused.get(move.peer) ?? 0, move.through));
    }
    this.#checkWatermark(node, move.peer, move.through);
  }

  #checkWatermark(node: OurNode, peer: string, through: number): void {
    const acked = this.#options.network.acknowledged(node.url, peer);
    const allowed = Math.max(acked, this.#of(node).refused.get(peer) ?? 0);
    if (through > allowed) {
      this.#find(
        `${node.url} moved the watermark of ${peer} to ${through}; it acknowledged ${acked} (X2)`,
      );
    }
  }

  /** The node has done what is due by itself, having begun with it at `sinceMs`. */
  checkMoved(node: OurNode, running: Running, sinceMs: number): void {
    const { db } = running.store;
    const peers = db
      .query<{ url: string; acked: number }, []>(
        "SELECT peer_url AS url, last_acked AS acked FROM _peer_state",
      )
      .all();
    for (const { url, acked } of peers) this.#checkWatermark(node, url, acked);
    if (peers.length === 0) return;
    const least = Math.min(...peers.map(({ acked }) => acked));
    const { oldest, newest } = db
      .query<{ oldest: number | null; newest: number | null }, []>(
        "SELECT min(change_id) AS oldest, max(change_id) AS newest FROM _changes",
      )
      .get()!;
    if (oldest === null || oldest > least) return;
    const isAtRest = sinceMs - this.#of(node).writtenMs >= REST_MS;
    if (isAtRest || newest! <= least) {
      this.#find(`${node.url} keeps change ${oldest}, which every peer has up to ${least} (X3)`);
    }
  }

  // ── X5, X6 ──────────────────────────────────────────────────────────────────────────────────

  /** Called inside the program's transaction, before it writes. */
  beforeProgram(_node: OurNode, db: Database, keys: readonly string[]): Before {
    const tables = new Set(keys.map((key) => splitKey(key)[0]));
    return {
      ...readStandings(db, tables),
      newest: newestChange(db),
      tables,
    };
  }

  /** After its commit. */
  afterProgram(node: OurNode, before: Before): void {
    const record = this.#of(node);
    const touched = new Set<string>();
    const { program } = node;
    const logged = program
      .query<{ tbl: string; id: string }, [number]>(
        "SELECT table_name AS tbl, row_id AS id FROM _changes WHERE change_id > ?",
      )
      .all(before.newest);
    for (const { tbl, id } of logged) touched.add(`${tbl}/${id}`);
    const after = readStandings(program, before.tables);
    for (const [key, content] of before.contents) {
      if (after.contents.get(key) !== content) touched.add(key);
    }
    for (const key of after.contents.keys()) if (!before.contents.has(key)) touched.add(key);
    for (const key of touched) {
      record.written.add(key);
      if (!record.unsettled.has(key)) record.unsettled.set(key, before.standings.get(key));
    }
  }

  /** After every commit of the node: everything is settled then. */
  checkCommitted(node: OurNode, running: Running): void {
    const { db } = running.store;
    const flag = db
      .query<{ value: number }, []>("SELECT value FROM _meta WHERE key = 'syncing'")
      .get();
    if (flag?.value !== 0) this.#find(`${node.url} left the syncing flag up (X6)`);
    this.#checkSettled(node, running);
  }

  #checkSettled(node: OurNode, running: Running): void {
    const { unsettled } = this.#of(node);
    if (unsettled.size === 0) return;
    const { db } = running.store;
    for (const [key, before] of unsettled) {
      const [table, id] = splitKey(key);
      const row = db
        .query<{ stamp: number | null; kind: string }, [string]>(
          `SELECT updated_at AS stamp, typeof(updated_at) AS kind FROM ${table} WHERE id = ?`,
        )
        .get(id);
      const standing = this.versionAt(db, table, id);
      if (row !== null) {
        const isAbove = row.kind === "integer" && row.stamp! > (before ?? -Infinity);
        if (isAbove) continue;
        this.#find(`${node.url} settled ${key} at ${row.stamp}; it replaced ${before} (X5)`);
      } else if (before !== undefined && (standing === undefined || standing < before)) {
        this.#find(`${node.url} settled the delete of ${key} at ${standing}, below ${before} (X5)`);
      }
    }
    unsettled.clear();
  }

  onEvent(node: OurNode, kind: string): void {
    if (kind === "gap" || kind === "registered" || kind === "flag-restored") {
      this.#of(node).hasAnnounced = true;
    }
  }

  /** Something is asked of its REST. */
  writes(node: OurNode): void {
    this.#of(node).writtenMs = this.#options.world.nowMs;
  }

  /** A write of this row was asked for here, whether or not it is answered. */
  touches(node: OurNode, table: string, id: string): void {
    this.#of(node).written.add(`${table}/${id}`);
  }

  /** An id that this node made. */
  made(node: OurNode, id: string, tables: readonly string[]): void {
    for (const table of tables) this.#of(node).written.add(`${table}/${id}`);
  }

  #find(text: string): void {
    this.#options.world.fail(new Finding(text));
  }
}

export function splitKey(key: string): [table: string, id: string] {
  const at = key.indexOf("/");
  return [key.slice(0, at), key.slice(at + 1)];
}

function newestChange(db: Database): number {
  return (
    db.query<{ id: number | null }, []>("SELECT max(change_id) AS id FROM _changes").get()!.id ?? 0
  );
}

function readStandings(
  db: Database,
  tables: ReadonlySet<string>,
): { standings: Map<string, Standing>; contents: Map<string, string> } {
  const standings = new Map<string, Standing>();
  const contents = new Map<string, string>();
  for (const table of tables) {
    const stones = db
      .query<{ id: string; version: number }, [string]>(
        "SELECT id, version FROM _hooksync_tombstones WHERE tbl = ?",
      )
      .all(table);
    for (const { id, version } of stones) standings.set(`${table}/${id}`, version);
    const rows = db
      .query<{ id: string; stamp: number; row: string }, []>(
        `SELECT id, CASE typeof(updated_at) WHEN 'integer' THEN updated_at ELSE -1 END AS stamp, updated_at AS row FROM ${table}`,
      )
      .all();
    for (const { id, stamp, row } of rows) {
      const key = `${table}/${id}`;
      standings.set(key, Math.max(stamp, standings.get(key) ?? -Infinity));
      contents.set(key, String(row));
    }
  }
  return { standings, contents };
}

interface Claimed {
  readonly op: string;
  readonly table: string;
  readonly id: string | undefined;
  readonly version: number | undefined;
}

interface Body {
  readonly batch_id: number;
  readonly changes:
    | {
        op: string;
        table: string;
        row: { id?: string; updated_at?: number | null } | null;
        old_id: string | null;
      }[]
    | null;
}

function readBatch(request: WireRequest): Body {
  return JSON.parse(new TextDecoder().decode(request.body)) as Body;
}

function changesOf(request: WireRequest): Claimed[] {
  return (readBatch(request).changes ?? []).map(({ op, table, row, old_id: oldId }) => ({
    op,
    table,
    id: op === "DELETE" ? (oldId ?? undefined) : row?.id,
    version: row === null ? undefined : (row.updated_at ?? 0),
  }));
}
