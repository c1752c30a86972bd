// Checks definitions of custom resources by the API server's own code: `check FILE..`, each a definition as JSON or YAML.
// The mistakes of each file go to standard output, and any of them makes the exit status 1.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func main() {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	// Unknown and repeated keys are mistakes. Defaults are set, as before each validation in the server.
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	status := 0
	for _, path := range os.Args[1:] {
		if err := check(codecs.UniversalDecoder(apiextensions.SchemeGroupVersion), path); err != nil {
			fmt.Printf("%s: %v\n", path, err)
			status = 1
		}
	}
	os.Exit(status)
}

func check(decoder runtime.Decoder, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	object, kind, err := decoder.Decode(text, nil, nil)
	if err != nil {
		return err
	}
	definition, right := object.(*apiextensions.CustomResourceDefinition)
	if !right {
		return fmt.Errorf("%v is no CustomResourceDefinition", kind)
	}
	return validation.ValidateCustomResourceDefinition(context.Background(), definition).ToAggregate()
}
