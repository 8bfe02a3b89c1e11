// The relay hub of the field: a meeting place for nodes that cannot reach each other. It is no node, it
// has no REST and captures nothing: it acknowledges a batch at once, keeps it in its own file, and
// forwards it later to every address it knows. Ours has to stay correct behind it, so its faults are
// kept. On purpose it
//
//   - acknowledges before anybody has the changes;
//   - forwards in no particular order, many at once, and from two sweeps that know nothing of each
//     other: the same batch may arrive twice, at the same moment;
//   - sends a batch back to where it came from, unless the request's X-Node-Url is the address that
//     the hub has for it;
//   - takes numbers through float64 and drops headers and members that it does not know.
package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"math/rand"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	_ "github.com/mattn/go-sqlite3"
)

const (
	bodyBytesMax = 16 << 20
	sweeps       = 2
	// Bounds the bodies in memory at once; what is over waits for the next sweep.
	forwardsPerSweep = 16
)

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

type forward struct {
	id   int64
	peer string
	body []byte
}

type hub struct {
	id, url string
	db      *sql.DB
	peers   []string
}

type repeated []string

func (r *repeated) String() string { return strings.Join(*r, ",") }
func (r *repeated) Set(value string) error {
	*r = append(*r, strings.TrimRight(value, "/"))
	return nil
}

func main() {
	var peers repeated
	id := flag.String("id", "hub", "name of this hub")
	path := flag.String("db", "", "SQLite file")
	listen := flag.String("listen", ":9010", "address to listen on")
	url := flag.String("url", "", "address of this hub as its peers see it")
	batchMs := flag.Int("batch-ms", 50, "milliseconds between two sweeps")
	flag.Int("batch-size", 10000, "taken and ignored: a batch is forwarded as it came")
	flag.Var(&peers, "peer", "URL of a node or another hub (repeatable)")
	flag.Parse()

	db, err := sql.Open("sqlite3", *path+"?_journal_mode=WAL&_synchronous=NORMAL&_busy_timeout=5000&_txlock=immediate")
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	for _, statement := range []string{
		`CREATE TABLE IF NOT EXISTS _forwards (forward_id INTEGER PRIMARY KEY AUTOINCREMENT, peer_url TEXT, body BLOB)`,
		`CREATE TABLE IF NOT EXISTS _backup (table_name TEXT, row_id TEXT, row_data TEXT, PRIMARY KEY(table_name, row_id))`,
	} {
		if _, err := db.Exec(statement); err != nil {
			log.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	h := &hub{id: *id, url: *url, db: db, peers: peers}
	if h.url == "" {
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		h.url = "http://127.0.0.1:" + port
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sync", h.receive)
	mux.HandleFunc("GET /health", h.health)
	server := &http.Server{Handler: mux}
	go server.Serve(listener)
	for range sweeps {
		go func() {
			for range time.Tick(time.Duration(*batchMs) * time.Millisecond) {
				if err := h.sweep(); err != nil {
					log.Print(err)
				}
			}
		}()
	}
	log.Printf("%s listens on %s", h.id, listener.Addr())

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	server.Shutdown(context.Background())
	db.Close()
}

func (h *hub) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytesMax))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		answer(w, http.StatusRequestEntityTooLarge, map[string]any{"error": "body too large"})
		return
	}
	var received batch
	if err == nil {
		err = json.Unmarshal(body, &received)
	}
	if err != nil {
		answer(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
		return
	}
	if err := h.keep(received, strings.TrimRight(r.Header.Get("X-Node-Url"), "/")); err != nil {
		answer(w, http.StatusInternalServerError, map[string]any{"error": err.Error()})
		return
	}
	answer(w, http.StatusOK, reply{Applied: len(received.Changes), Ack: received.BatchID})
}

// keep stores the rows as a backup and one forward for every peer but the one at `from`.
func (h *hub) keep(b batch, from string) error {
	body, err := json.Marshal(b)
	if err != nil {
		return err
	}
	tx, err := h.db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	backup, err := tx.Prepare(`INSERT OR REPLACE INTO _backup(table_name, row_id, row_data) VALUES(?, ?, ?)`)
	if err != nil {
		return err
	}
	for _, c := range b.Changes {
		if c.Op == "DELETE" {
			_, err = tx.Exec(`DELETE FROM _backup WHERE table_name = ? AND row_id = ?`, c.Table, c.OldID)
		} else if row, failure := json.Marshal(c.Row); failure == nil {
			_, err = backup.Exec(c.Table, c.Row["id"], string(row))
		}
		if err != nil {
			return err
		}
	}
	for _, peer := range h.peers {
		if peer == from {
			continue
		}
		if _, err := tx.Exec(`INSERT INTO _forwards(peer_url, body) VALUES(?, ?)`, peer, body); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// sweep forwards what is waiting, shuffled and in parallel. A forward that fails is left for a later sweep.
func (h *hub) sweep() error {
	waiting, err := h.waiting()
	if err != nil {
		return err
	}
	rand.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
	var posts sync.WaitGroup
	for _, f := range waiting {
		posts.Add(1)
		go func(f forward) {
			defer posts.Done()
			err := h.post(f)
			if err == nil {
				_, err = h.db.Exec(`DELETE FROM _forwards WHERE forward_id = ?`, f.id)
			}
			if err != nil {
				log.Printf("%s: %v", f.peer, err)
			}
		}(f)
	}
	posts.Wait()
	return nil
}

func (h *hub) waiting() ([]forward, error) {
	rows, err := h.db.Query(`SELECT forward_id, peer_url, body FROM _forwards ORDER BY random() LIMIT ?`, forwardsPerSweep)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []forward
	for rows.Next() {
		var f forward
		if err := rows.Scan(&f.id, &f.peer, &f.body); err != nil {
			return nil, err
		}
		found = append(found, f)
	}
	return found, rows.Err()
}

func (h *hub) post(f forward) error {
	request, err := http.NewRequest(http.MethodPost, f.peer+"/sync", bytes.NewReader(f.body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Node-Id", h.id)
	request.Header.Set("X-Node-Url", h.url)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusOK {
		return errors.New("answered " + response.Status)
	}
	return nil
}

func (h *hub) health(w http.ResponseWriter, r *http.Request) {
	var backup, pending int64
	err := h.db.QueryRow(`SELECT (SELECT count(*) FROM _backup), (SELECT count(*) FROM _forwards)`).Scan(&backup, &pending)
	if err != nil {
		answer(w, http.StatusInternalServerError, map[string]any{"error": err.Error()})
		return
	}
	answer(w, http.StatusOK, map[string]any{
		"ok": true, "hub": true, "node_id": h.id, "backup_items": backup, "pending_forwards": pending, "peers": h.peers,
	})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body)
}
