// A hook-sync node in Go: a second reading of the wire contract, independent of ours, so that ours is
// not only tested against itself. It behaves as the Go nodes in the field do, and its faults are its
// purpose: ours has to live beside them. On purpose it
//
//   - takes every number through float64, so integers above 2^53 lose digits;
//   - writes "old_id": "" for null, and null for an empty slice or a row it cannot read;
//   - replaces the whole row by the message's columns (INSERT OR REPLACE);
//   - swallows the error of a single row and acknowledges the batch all the same, `applied` lower;
//   - lets the last arrival win a tie (>=) and stamps with its own clock, whatever it replaces;
//   - keeps no tombstones: a late INSERT revives a deleted row;
//   - refuses bodies above 16 MiB with a 413, and sends its own, larger or not, for ever;
//   - ships to its peers one after the other, without a time limit, on a tick.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sort"
	"strings"
	"syscall"
	"time"

	_ "github.com/mattn/go-sqlite3"
)

const bodyBytesMax = 16 << 20

type change struct {
	Op    string         `json:"op"`
	Table string         `json:"table"`
	Row   map[string]any `json:"row"`
	OldID string         `json:"old_id"`
}

type batch struct {
	BatchID int64    `json:"batch_id"`
	Changes []change `json:"changes"`
}

type reply struct {
	Applied int   `json:"applied"`
	Ack     int64 `json:"ack"`
}

type peerState struct {
	PeerURL   string `json:"peer_url"`
	LastAcked int64  `json:"last_acked"`
}

type node struct {
	id          string
	db          *sql.DB
	peers       []string
	tables      map[string]bool
	tick        time.Duration
	batchSize   int
	clockOffset time.Duration
}

type repeated []string

func (r *repeated) String() string { return strings.Join(*r, ",") }
func (r *repeated) Set(value string) error {
	*r = append(*r, strings.TrimRight(value, "/"))
	return nil
}

func main() {
	var peers repeated
	id := flag.String("id", "", "name of this node")
	path := flag.String("db", "", "SQLite file")
	listen := flag.String("listen", ":9001", "address to listen on")
	batchMs := flag.Int("batch-ms", 50, "milliseconds between two rounds of shipping")
	batchSize := flag.Int("batch-size", 10000, "most changes in one batch")
	clockOffsetMs := flag.Int64("clock-offset-ms", 0, "milliseconds to add to the clock, for tests")
	flag.Var(&peers, "peer", "URL of a peer (repeatable)")
	flag.Parse()

	db, err := sql.Open("sqlite3", *path+"?_journal_mode=WAL&_synchronous=NORMAL&_busy_timeout=5000&_txlock=immediate")
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	n := &node{
		id: *id, db: db, peers: peers, tables: map[string]bool{},
		tick: time.Duration(*batchMs) * time.Millisecond, batchSize: *batchSize,
		clockOffset: time.Duration(*clockOffsetMs) * time.Millisecond,
	}
	if err := n.prepareFile(); err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: n.routes()}
	go server.Serve(listener)
	go n.shipForEver()
	log.Printf("%s listens on %s", n.id, listener.Addr())

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	server.Shutdown(context.Background())
	db.Close()
}

// ---- the file ----

func (n *node) prepareFile() error {
	for _, statement := range []string{
		`CREATE TABLE IF NOT EXISTS items (
			id TEXT PRIMARY KEY, name TEXT, value INTEGER,
			created_at INTEGER, updated_at INTEGER, node_id TEXT)`,
		`CREATE TABLE IF NOT EXISTS _meta (key TEXT PRIMARY KEY, value INTEGER)`,
		`CREATE TABLE IF NOT EXISTS _changes (
			change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, table_name TEXT, row_id TEXT, row_data TEXT)`,
		`CREATE TABLE IF NOT EXISTS _dead_letter (
			dead_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, row_id TEXT, row_data TEXT,
			failed_at INTEGER, retry_count INTEGER DEFAULT 0)`,
		`CREATE TABLE IF NOT EXISTS _peer_state (peer_url TEXT PRIMARY KEY, last_acked INTEGER DEFAULT 0)`,
		`INSERT OR IGNORE INTO _meta(key, value) VALUES('syncing', 0)`,
	} {
		if _, err := n.db.Exec(statement); err != nil {
			return err
		}
	}
	for _, peer := range n.peers {
		if _, err := n.db.Exec(`INSERT OR IGNORE INTO _peer_state(peer_url) VALUES(?)`, peer); err != nil {
			return err
		}
	}
	return n.registerTables()
}

// registerTables installs capture on every user table that has an id and an updated_at.
func (n *node) registerTables() error {
	names, err := n.strings(`SELECT name FROM sqlite_master WHERE type = 'table'
		AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name NOT LIKE '\_%' ESCAPE '\' ORDER BY name`)
	if err != nil {
		return err
	}
	for _, table := range names {
		columns, err := n.strings(`SELECT name FROM pragma_table_info(?)`, table)
		if err != nil {
			return err
		}
		if !contains(columns, "id") || !contains(columns, "updated_at") {
			continue
		}
		n.tables[table] = true
		for _, capture := range []struct{ suffix, op, side string }{
			{"ai", "INSERT", "NEW"}, {"au", "UPDATE", "NEW"}, {"ad", "DELETE", "OLD"},
		} {
			trigger := quoteName(table + "_" + capture.suffix)
			var members []string
			for _, column := range columns {
				members = append(members, quoteText(column)+", "+capture.side+"."+quoteName(column))
			}
			if _, err := n.db.Exec(`DROP TRIGGER IF EXISTS ` + trigger); err != nil {
				return err
			}
			if _, err := n.db.Exec(fmt.Sprintf(`CREATE TRIGGER %s AFTER %s ON %s
				WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
				BEGIN
					INSERT INTO _changes(op, table_name, row_id, row_data) VALUES('%s', %s, %s.id,
						json_object(%s));
				END`, trigger, capture.op, quoteName(table), capture.op, quoteText(table),
				capture.side, strings.Join(members, ", "))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *node) strings(query string, args ...any) ([]string, error) {
	rows, err := n.db.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []string
	for rows.Next() {
		var value string
		if err := rows.Scan(&value); err != nil {
			return nil, err
		}
		found = append(found, value)
	}
	return found, rows.Err()
}

func (n *node) now() int64 { return time.Now().Add(n.clockOffset).UnixMilli() }

// ---- receiving ----

func (n *node) receive(w http.ResponseWriter, r *http.Request) {
	var received batch
	if !readJSON(w, r, &received) {
		return
	}
	applied, err := n.apply(received.Changes)
	if err != nil {
		answer(w, http.StatusInternalServerError, map[string]any{"error": err.Error()})
		return
	}
	answer(w, http.StatusOK, reply{Applied: applied, Ack: received.BatchID})
}

func (n *node) apply(changes []change) (int, error) {
	tx, err := n.db.Begin()
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	if _, err := tx.Exec(`UPDATE _meta SET value = 1 WHERE key = 'syncing'`); err != nil {
		return 0, err
	}
	prepared := map[string]*sql.Stmt{}
	applied := 0
	for _, c := range changes {
		took, err := n.applyOne(tx, prepared, c)
		if err != nil {
			log.Printf("%s %s: %v", c.Op, c.Table, err) // and no word of it to the sender
			continue
		}
		if took {
			applied++
		}
	}
	if _, err := tx.Exec(`UPDATE _meta SET value = 0 WHERE key = 'syncing'`); err != nil {
		return 0, err
	}
	return applied, tx.Commit()
}

func (n *node) applyOne(tx *sql.Tx, prepared map[string]*sql.Stmt, c change) (bool, error) {
	if !n.tables[c.Table] {
		return false, fmt.Errorf("no table %q", c.Table)
	}
	run := func(query string) (*sql.Stmt, error) {
		if statement := prepared[query]; statement != nil {
			return statement, nil
		}
		statement, err := tx.Prepare(query)
		if err == nil {
			prepared[query] = statement
		}
		return statement, err
	}
	id, stamp := c.Row["id"], stampOf(c.Row["updated_at"])
	if c.Op == "DELETE" && c.OldID != "" {
		id = c.OldID
	}
	table := quoteName(c.Table)

	find, err := run(`SELECT updated_at FROM ` + table + ` WHERE id = ?`)
	if err != nil {
		return false, err
	}
	var stored any
	switch err := find.QueryRow(id).Scan(&stored); {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return false, err
	case c.Row != nil && stampOf(stored) > stamp:
		return false, nil
	}

	switch c.Op {
	case "DELETE":
		remove, err := run(`DELETE FROM ` + table + ` WHERE id = ?`)
		if err != nil {
			return false, err
		}
		_, err = remove.Exec(id)
		return err == nil, err
	case "INSERT", "UPDATE":
		var columns, marks []string
		for column := range c.Row {
			columns = append(columns, column)
		}
		sort.Strings(columns)
		var values []any
		for i, column := range columns {
			values = append(values, c.Row[column])
			columns[i] = quoteName(column)
			marks = append(marks, "?")
		}
		write, err := run(`INSERT OR REPLACE INTO ` + table + ` (` + strings.Join(columns, ", ") +
			`) VALUES (` + strings.Join(marks, ", ") + `)`)
		if err != nil {
			return false, err
		}
		_, err = write.Exec(values...)
		return err == nil, err
	}
	return false, fmt.Errorf("no operation %q", c.Op)
}

// stampOf takes what has no usable stamp for the oldest of all.
func stampOf(value any) float64 {
	switch v := value.(type) {
	case float64:
		return v
	case int64:
		return float64(v)
	}
	return 0
}

// ---- shipping ----

var errMismatch = errors.New("acknowledged another batch")

func (n *node) shipForEver() {
	for range time.Tick(n.tick) {
		for _, peer := range n.peers {
			if err := n.drain(peer); err != nil {
				log.Printf("%s: %v", peer, err)
			}
		}
		if len(n.peers) > 0 {
			if err := n.prune(); err != nil {
				log.Print(err)
			}
		}
	}
}

// drain sends batch after batch until the peer has everything or fails five times in a row.
func (n *node) drain(peer string) error {
	for {
		b, err := n.nextBatch(peer)
		if err != nil || len(b.Changes) == 0 {
			return err
		}
		pause := 50 * time.Millisecond
		for attempt := 1; ; attempt++ {
			err = n.post(peer, b)
			if err == nil || attempt == 5 {
				break
			}
			time.Sleep(pause)
			pause *= 2
		}
		if errors.Is(err, errMismatch) {
			err = n.deadLetter(peer, b)
		}
		if err != nil {
			return err
		}
		if _, err := n.db.Exec(`UPDATE _peer_state SET last_acked = ? WHERE peer_url = ?`, b.BatchID, peer); err != nil {
			return err
		}
	}
}

func (n *node) nextBatch(peer string) (batch, error) {
	var b batch
	rows, err := n.db.Query(`SELECT change_id, op, table_name, row_id, row_data FROM _changes
		WHERE change_id > (SELECT last_acked FROM _peer_state WHERE peer_url = ?)
		ORDER BY change_id LIMIT ?`, peer, n.batchSize)
	if err != nil {
		return b, err
	}
	defer rows.Close()
	for rows.Next() {
		var c change
		var table, rowID, data sql.NullString
		if err := rows.Scan(&b.BatchID, &c.Op, &table, &rowID, &data); err != nil {
			return b, err
		}
		c.Table = table.String
		if json.Unmarshal([]byte(data.String), &c.Row) != nil {
			c.Row = nil // an infinity, say: leaves as "row": null
		}
		if c.Op == "DELETE" {
			c.OldID = rowID.String
		}
		b.Changes = append(b.Changes, c)
	}
	return b, rows.Err()
}

func (n *node) post(peer string, b batch) error {
	body, err := json.Marshal(b)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPost, peer+"/sync", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Node-Id", n.id)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		io.Copy(io.Discard, response.Body)
		return fmt.Errorf("answered %s", response.Status)
	}
	var got reply
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil {
		return err
	}
	if got.Ack != b.BatchID {
		return errMismatch
	}
	return nil
}

func (n *node) deadLetter(peer string, b batch) error {
	_, err := n.db.Exec(`INSERT INTO _dead_letter(op, row_id, row_data, failed_at, retry_count)
		SELECT op, row_id, row_data, ?, 5 FROM _changes
		WHERE change_id > (SELECT last_acked FROM _peer_state WHERE peer_url = ?) AND change_id <= ?`,
		n.now(), peer, b.BatchID)
	return err
}

func (n *node) prune() error {
	oldest := int64(-1)
	for _, peer := range n.peers {
		var acked int64
		if err := n.db.QueryRow(`SELECT last_acked FROM _peer_state WHERE peer_url = ?`, peer).Scan(&acked); err != nil {
			return err
		}
		if oldest < 0 || acked < oldest {
			oldest = acked
		}
	}
	_, err := n.db.Exec(`DELETE FROM _changes WHERE change_id <= ?`, oldest)
	return err
}

// ---- REST ----

type newItem struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
}

func (n *node) routes() http.Handler {
	mux := http.NewServeMux() // answers unknown paths with a plain-text 404
	mux.HandleFunc("POST /sync", n.receive)
	mux.HandleFunc("GET /health", n.health)
	mux.HandleFunc("POST /api/items", n.createItem)
	mux.HandleFunc("POST /api/items/batch", n.createItems)
	mux.HandleFunc("GET /api/items", n.listItems)
	mux.HandleFunc("GET /api/items/{id}", n.getItem)
	mux.HandleFunc("PUT /api/items/{id}", n.updateItem)
	mux.HandleFunc("DELETE /api/items/{id}", n.deleteItem)
	return mux
}

const insertItem = `INSERT INTO items(id, name, value, created_at, updated_at, node_id) VALUES(?, ?, ?, ?, ?, ?)`

func (n *node) createItem(w http.ResponseWriter, r *http.Request) {
	var item newItem
	if !readJSON(w, r, &item) {
		return
	}
	id, now := uuidV7(), n.now()
	if _, err := n.db.Exec(insertItem, id, item.Name, item.Value, now, now, n.id); failed(w, err) {
		return
	}
	answer(w, http.StatusOK, map[string]any{
		"id": id, "name": item.Name, "value": item.Value, "created_at": now, "node_id": n.id,
	})
}

func (n *node) createItems(w http.ResponseWriter, r *http.Request) {
	var items []newItem
	if !readJSON(w, r, &items) {
		return
	}
	tx, err := n.db.Begin()
	if failed(w, err) {
		return
	}
	defer tx.Rollback()
	insert, err := tx.Prepare(insertItem)
	if failed(w, err) {
		return
	}
	now := n.now()
	for _, item := range items {
		if _, err := insert.Exec(uuidV7(), item.Name, item.Value, now, now, n.id); failed(w, err) {
			return
		}
	}
	if failed(w, tx.Commit()) {
		return
	}
	answer(w, http.StatusOK, map[string]any{"created": len(items)})
}

func (n *node) listItems(w http.ResponseWriter, r *http.Request) {
	items, err := n.items(`ORDER BY created_at DESC LIMIT 100`)
	if !failed(w, err) {
		answer(w, http.StatusOK, items)
	}
}

func (n *node) getItem(w http.ResponseWriter, r *http.Request) {
	items, err := n.items(`WHERE id = ?`, r.PathValue("id"))
	if failed(w, err) {
		return
	}
	if len(items) == 0 {
		answer(w, http.StatusNotFound, map[string]any{"error": "not found"})
		return
	}
	answer(w, http.StatusOK, items[0])
}

func (n *node) updateItem(w http.ResponseWriter, r *http.Request) {
	var item newItem
	if !readJSON(w, r, &item) {
		return
	}
	id, now := r.PathValue("id"), n.now()
	_, err := n.db.Exec(`UPDATE items SET name = ?, value = ?, updated_at = ? WHERE id = ?`, item.Name, item.Value, now, id)
	if !failed(w, err) {
		answer(w, http.StatusOK, map[string]any{"id": id, "name": item.Name, "value": item.Value, "updated_at": now})
	}
}

func (n *node) deleteItem(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if _, err := n.db.Exec(`DELETE FROM items WHERE id = ?`, id); !failed(w, err) {
		answer(w, http.StatusOK, map[string]any{"deleted": id})
	}
}

func (n *node) items(clause string, args ...any) ([]map[string]any, error) {
	rows, err := n.db.Query(`SELECT id, name, value, created_at, updated_at, node_id FROM items `+clause, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []map[string]any
	for rows.Next() {
		var id, name, value, createdAt, updatedAt, nodeID any
		if err := rows.Scan(&id, &name, &value, &createdAt, &updatedAt, &nodeID); err != nil {
			return nil, err
		}
		found = append(found, map[string]any{
			"id": id, "name": name, "value": value, "created_at": createdAt, "updated_at": updatedAt, "node_id": nodeID,
		})
	}
	return found, rows.Err()
}

func (n *node) health(w http.ResponseWriter, r *http.Request) {
	var items, pending, dead int64
	var peers []peerState
	err := n.db.QueryRow(`SELECT (SELECT count(*) FROM items), (SELECT count(*) FROM _changes), (SELECT count(*) FROM _dead_letter)`).
		Scan(&items, &pending, &dead)
	for _, peer := range n.peers {
		state := peerState{PeerURL: peer}
		if err == nil {
			err = n.db.QueryRow(`SELECT last_acked FROM _peer_state WHERE peer_url = ?`, peer).Scan(&state.LastAcked)
		}
		peers = append(peers, state)
	}
	if !failed(w, err) {
		answer(w, http.StatusOK, map[string]any{
			"ok": true, "node_id": n.id, "item_count": items, "pending_changes": pending, "dead_letter": dead, "peers": peers,
		})
	}
}

// ---- small things ----

func readJSON(w http.ResponseWriter, r *http.Request, into any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytesMax))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		answer(w, http.StatusRequestEntityTooLarge, map[string]any{"error": "body too large"})
		return false
	case err == nil:
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		answer(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
	}
	return err == nil
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body)
}

func failed(w http.ResponseWriter, err error) bool {
	if err != nil {
		answer(w, http.StatusInternalServerError, map[string]any{"error": err.Error()})
	}
	return err != nil
}

// uuidV7 always takes the true time: ids are names, and only stamps are put wrong by a wrong clock.
func uuidV7() string {
	var b [16]byte
	rand.Read(b[:])
	ms := uint64(time.Now().UnixMilli())
	for i := 0; i < 6; i++ {
		b[i] = byte(ms >> (8 * (5 - i)))
	}
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func quoteName(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
func quoteText(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }

func contains(list []string, wanted string) bool {
	for _, item := range list {
		if item == wanted {
			return true
		}
	}
	return false
}
