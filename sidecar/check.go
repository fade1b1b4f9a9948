package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/sidecar/internal/config"
)

func checkConfigCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check-config FILE...",
		Short: "Say what is wrong with configuration and rules files; needs no node",
		Long: `Say what is wrong with configuration and rules files; needs no node.

A FILE is a sidecar.toml, a rules file, or a directory of rules files. All faults
are told, with file and line.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			bad := 0
			for _, path := range paths {
				rules, err := config.Check(path)
				if err != nil {
					bad++
					fmt.Fprintln(cmd.ErrOrStderr(), err)
					continue
				}
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: ok, rules: %d\n", path, rules); err != nil {
					return err
				}
			}
			if bad > 0 {
				return errors.New("the configuration has faults")
			}
			return nil
		},
	}
}
