/**
 * What the tests of larger fleets have in common: a star around the hub, and traffic that makes, changes
 * and removes rows on every member at once.
 */
import type { Fleet, Make, Member } from "./fleet.ts";

/** A started hub with its spokes, ours with or without its own address in its requests. */
export async function star(fleet: Fleet, makes: readonly Make[], { url }: { url: boolean }) {
  const hub = fleet.declare("hub");
  const spokes = makes.map((make) => fleet.declare(make));
  hub.peers = spokes.map((spoke) => spoke.url);
  for (const spoke of spokes) {
    spoke.peers = [hub.url];
    if (url && spoke.make === "ours") spoke.flags.push("--url", spoke.url);
  }
  await Promise.all([hub, ...spokes].map((member) => member.start()));
  return { all: [hub, ...spokes], spokes };
}

/** What `writeOnAll` leaves of one writer. */
export const ROWS_PER_WRITER = 216;

/**
 * Every member makes rows, changes some and removes some. `between` is awaited between these steps; it
 * at least lets a millisecond pass, since foreign nodes stamp two writes of one with the same version.
 */
export async function writeOnAll(
  members: Member[],
  between: () => Promise<unknown>,
): Promise<void> {
  const made = await Promise.all(
    members.map(async (member) => {
      const ids: string[] = [];
      for (let i = 0; i < 20; i++) ids.push(await member.create(`${member.id} ${i}`, i));
      return ids;
    }),
  );
  const each = (every: number, work: (member: Member, id: string) => Promise<void>) =>
    Promise.all(
      members.map(async (member, m) => {
        const ids = made[m]?.filter((_, i) => i % every === 0) ?? [];
        for (const id of ids) await work(member, id);
      }),
    );
  await between();
  await each(3, (member, id) => member.update(id, `changed by ${member.id}`, -1));
  await between();
  await each(5, (member, id) => member.remove(id));
  await Promise.all(members.map((member) => member.createMany(200, member.id)));
}
