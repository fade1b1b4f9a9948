package main

import (
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// print writes an answer in the format that was asked for. people renders it as
// a table. YAML is made from the JSON, so the two cannot differ; its encoder
// escapes control characters too. The answer is written at once: a failed answer leaves no half table.
func (a *app) print(w io.Writer, answer proto.Message, people func(wide bool) string) error {
	var text []byte
	switch a.output {
	case jsonFormat, yamlFormat:
		encoded, err := encode(answer)
		if err != nil {
			return err
		}
		text = encoded
		if a.output == yamlFormat {
			if text, err = yaml.JSONToYAML(encoded); err != nil {
				return fmt.Errorf("yaml: %w", err)
			}
		}
	default:
		text = []byte(people(a.output == wideFormat))
	}
	_, err := w.Write(text)
	return err
}
