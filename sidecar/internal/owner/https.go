package owner

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

func httpClient(caFile string) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s: holds no certificate", caFile)
		}
	}
	return &http.Client{
		Timeout:   listTimeout,
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
		// A token goes to the kubelet and to nobody that it names.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

func (s *Source) listHTTPS(ctx context.Context) ([]policy.PodSpec, error) {
	list, err := s.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("pods of the kubelet at %s: %w", s.cfg.URL, err)
	}
	pods := make([]pod, len(list.Items))
	for i := range list.Items {
		pods[i] = list.Items[i].pod()
	}
	return specs(pods), nil
}

// podList is the answer of /pods.
type podList struct {
	Kind  string    `json:"kind"`
	Items []podJSON `json:"items"`
}

func (s *Source) get(ctx context.Context) (list podList, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.cfg.URL, nil)
	if err != nil {
		return list, err
	}
	if s.cfg.TokenFile != "" {
		token, err := os.ReadFile(s.cfg.TokenFile)
		if err != nil {
			return list, fmt.Errorf("token_file: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(token)))
	}
	response, err := s.http.Do(req)
	if err != nil {
		return list, errors.Unwrap(err) // what wraps it names the URL once more
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return list, fmt.Errorf("%s: the token needs the right to get nodes/pods", response.Status)
	default:
		return list, errors.New(response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxMessage+1))
	if err != nil {
		return list, err
	}
	if len(data) > maxMessage {
		return list, fmt.Errorf("more than %d bytes", maxMessage)
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return list, fmt.Errorf("no list of pods: %w", err)
	}
	if list.Kind != "PodList" && list.Items == nil {
		return list, errors.New("no list of pods")
	}
	return list, nil
}
