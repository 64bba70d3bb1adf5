// What tools that read kstatus (Helm, Flux) make of objects: a List as JSON comes in, a line "NAME STATUS MESSAGE" for each goes out.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		fail(err)
	}
	// Kubernetes' own reader, which keeps whole numbers whole.
	var list map[string]any
	if err := json.Unmarshal(text, &list); err != nil {
		fail(err)
	}
	items, _, err := unstructured.NestedSlice(list, "items")
	if err != nil {
		fail(err)
	}
	for _, item := range items {
		object := &unstructured.Unstructured{Object: item.(map[string]any)}
		result, err := status.Compute(object)
		if err != nil {
			fail(fmt.Errorf("%s: %w", object.GetName(), err))
		}
		fmt.Printf("%s %s %s\n", object.GetName(), result.Status, result.Message)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}
