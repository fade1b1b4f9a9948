package owner

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

func TestHTTPS(t *testing.T) {
	t.Parallel() // it sends much
	var answer http.HandlerFunc
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	defer server.Close()
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for path, data := range map[string]string{ca: string(cert), token: "secret\n"} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := source(t, Config{Mode: ModeHTTPS, URL: server.URL + "/pods", CAFile: ca, TokenFile: token})
	list := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.URL.Path != "/pods" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList"}, Items: []corev1.Pod{*aPod("a", corev1.PodRunning, "x"), *aPod("b", corev1.PodFailed, "y")}})
	}
	answer = list
	got, err := s.Pods(t.Context())
	if diff := cmp.Diff([]policy.PodSpec{spec("a", "x")}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"no right": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "nodes/pods"},
		"fault":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, "500"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere/", http.StatusFound)
		}, "302"},
		"another kind": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"kind":"Status","items":[]}`)) }, "Status"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"kind":"PodList","items":[`))
			panic(http.ErrAbortHandler)
		}, "EOF"},
		"bad pod": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"kind":"PodList","items":[{"metadata":{"namespace":"ns","name":"a"},"spec":7}]}`))
		}, "ns/a"},
		"garbage":      {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, "no list of pods"},
		"another JSON": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }, "no list of pods"},
		"too much": {func(w http.ResponseWriter, _ *http.Request) {
			var err error
			for piece := make([]byte, 1<<20); err == nil; {
				_, err = w.Write(piece)
			}
		}, "more than"},
	} {
		answer = c.answer
		if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), server.URL) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	answer = list
	if err := os.WriteFile(token, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("another token: %v", err)
	}
	if _, err := source(t, Config{Mode: ModeHTTPS, URL: server.URL}).Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
}

// A kubelet that hangs is one that does not answer, also in the middle.
func TestHTTPSHangs(t *testing.T) {
	for name, begin := range map[string]func(w http.ResponseWriter){
		"before":        func(http.ResponseWriter) {},
		"in the middle": func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"kind":`)); w.(http.Flusher).Flush() },
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			begin(w)
			<-r.Context().Done()
		}))
		s := source(t, Config{Mode: ModeHTTPS, URL: server.URL + "/pods"})
		s.timeout = 100 * time.Millisecond
		if _, err := s.Pods(t.Context()); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), server.URL) {
			t.Errorf("%s: %v", name, err)
		}
		server.Close()
	}
}

// The read-only port is plain, and asked without a token.
func TestReadOnlyPort(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("a token was sent")
		}
		_, _ = w.Write([]byte(`{"kind":"PodList","apiVersion":"v1","metadata":{},"items":null}`))
	}))
	defer server.Close()
	s := source(t, Config{Mode: ModeHTTPS, URL: server.URL + "/pods"})
	if pods, err := s.Pods(t.Context()); len(pods) != 0 || err != nil || s.Kind() != "https" {
		t.Errorf("%v, %v, %s", pods, err, s.Kind())
	}
}
