// Validates a bundle of the Operator Lifecycle Manager with the Operator Framework's own checks: olm <folder>.
package main

import (
	"fmt"
	"os"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: olm <folder of the bundle>")
		os.Exit(1)
	}
	bundle, err := manifests.GetBundleFromDir(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "the bundle cannot be read:", err)
		os.Exit(1)
	}
	failed := false
	for _, result := range validation.AllValidators.Validate(bundle.ObjectsToValidate()...) {
		for _, warning := range result.Warnings {
			fmt.Println("warning:", warning)
		}
		for _, err := range result.Errors {
			fmt.Println("error:", err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
	fmt.Println("the bundle is valid")
}
