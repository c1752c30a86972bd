// The API server of custom resources, as Kubernetes has it, without users, admission and all other objects. It takes the
// flags of the real one, and stores in etcd.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
)

func main() {
	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	command := &cobra.Command{
		Use:               "server",
		PersistentPreRunE: func(*cobra.Command, []string) error { return o.ServerRunOptions.ComponentGlobalsRegistry.Set() },
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.Complete(); err != nil {
				return err
			}
			if err := o.Validate(); err != nil {
				return err
			}
			return server.Run(command.Context(), o)
		},
	}
	o.AddFlags(command.Flags())
	// The real one asks another API server about these three, which does not exist here.
	o.RecommendedOptions.Authentication = nil
	o.RecommendedOptions.Authorization = nil
	o.RecommendedOptions.Admission = nil
	command.SetContext(genericapiserver.SetupSignalContext())
	os.Exit(cli.Run(command))
}
