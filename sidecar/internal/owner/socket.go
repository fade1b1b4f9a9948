package owner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// The watch is begun anew after a pause from minPause to maxPause.
const minPause, maxPause = time.Second, 30 * time.Second

// redial are the pauses between attempts to connect. Those of gRPC grow to two
// minutes, for which a kubelet that is back would still count as away.
var redial = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: minPause}

func (s *Source) client() (podsapi.PodsClient, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		conn, err := grpc.NewClient("unix://"+s.cfg.Socket,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: listTimeout}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
		if err != nil {
			return nil, err
		}
		s.conn = conn
	}
	return podsapi.NewPodsClient(s.conn), nil
}

func (s *Source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		if err := s.conn.Close(); err != nil {
			s.log.Warn("connection to the kubelet does not close", "err", err)
		}
		s.conn = nil
	}
}

func (s *Source) listSocket(ctx context.Context) ([]policy.PodSpec, error) {
	fail := func(err error) error {
		return fmt.Errorf("pods of the kubelet at %s: %w", s.cfg.Socket, err)
	}
	client, err := s.client()
	if err != nil {
		return nil, fail(err)
	}
	list, err := client.ListPods(ctx, &podsapi.ListPodsRequest{})
	unready := status.Code(err) == codes.FailedPrecondition
	if err == nil || unready {
		s.mu.Lock()
		s.answered = true
		s.mu.Unlock()
	}
	switch {
	case unready:
		return nil, fail(fmt.Errorf("it has not read all its sources yet: %w", err))
	case err != nil:
		return nil, fail(err)
	}
	pods, err := decodeProto(list.GetPods())
	if err != nil {
		return nil, fail(err)
	}
	return pods, nil
}

// watch calls changed for each change that the kubelet tells of. It only wakes:
// what is true is listed.
func (s *Source) watch(ctx context.Context, changed func()) {
	pause := minPause
	for ctx.Err() == nil {
		began := time.Now()
		if s.cfg.Mode == ModeSocket || s.wanted() {
			err := s.follow(ctx, changed)
			if ctx.Err() == nil {
				s.log.Debug("the watch of the kubelet's pods ended", "err", err)
			}
		}
		if time.Since(began) > maxPause {
			pause = minPause
		}
		timer := time.NewTimer(pause + rand.N(pause/2))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, maxPause)
	}
}

func (s *Source) follow(ctx context.Context, changed func()) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.WatchPods(ctx, &podsapi.WatchPodsRequest{})
	if err != nil {
		return err
	}
	synced := false
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		synced = synced || event.GetType() == podsapi.EventType_INITIAL_SYNC_COMPLETE
		if synced { // what came before is the list of what there was
			changed()
		}
	}
}
