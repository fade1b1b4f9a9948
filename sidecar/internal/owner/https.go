package owner

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
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
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
		// A token goes to the kubelet and to nobody that it names.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

func (s *Source) listHTTPS(ctx context.Context) ([]policy.PodSpec, error) {
	data, err := s.get(ctx)
	var pods []policy.PodSpec
	if err == nil {
		pods, err = decodeJSON(data)
	}
	if err != nil {
		return nil, fmt.Errorf("pods of the kubelet at %s: %w", s.cfg.URL, err)
	}
	return pods, nil
}

func (s *Source) get(ctx context.Context) (data []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.cfg.URL, nil)
	if err != nil {
		return nil, err
	}
	if s.cfg.TokenFile != "" {
		token, err := os.ReadFile(s.cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("token_file: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(token)))
	}
	response, err := s.http.Do(req)
	if err != nil {
		return nil, errors.Unwrap(err) // what wraps it names the URL once more
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return nil, fmt.Errorf("%s: it does not know the token in token_file, which needs the right to get nodes/pods", response.Status)
	case http.StatusForbidden:
		return nil, fmt.Errorf("%s: the token needs the right to get nodes/pods", response.Status)
	default:
		return nil, errors.New(response.Status)
	}
	data, err = io.ReadAll(io.LimitReader(response.Body, maxMessage+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxMessage {
		return nil, fmt.Errorf("more than %d bytes", maxMessage)
	}
	return data, nil
}
