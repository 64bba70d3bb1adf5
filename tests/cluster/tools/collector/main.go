// The OpenTelemetry Collector of the tests: the collector itself with its OTLP receiver, and an exporter that writes what
// came in to a file, one JSON document a line, so that a test can read it.
package main

import (
	"context"
	"log"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

type settings struct {
	Path string `mapstructure:"path"`
}

type lines struct {
	path string
	lock sync.Mutex
	file *os.File
}

func (l *lines) Start(context.Context, component.Host) (err error) {
	l.file, err = os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return err
}

func (l *lines) Shutdown(context.Context) error { return l.file.Close() }

func (l *lines) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (l *lines) ConsumeTraces(_ context.Context, traces ptrace.Traces) error {
	text, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
	if err != nil {
		return err
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	_, err = l.file.Write(append(text, '\n'))
	return err
}

func linesFactory() exporter.Factory {
	create := func(_ context.Context, _ exporter.Settings, config component.Config) (exporter.Traces, error) {
		return &lines{path: config.(*settings).Path}, nil
	}
	return exporter.NewFactory(component.MustNewType("lines"), func() component.Config { return &settings{} },
		exporter.WithTraces(create, component.StabilityLevelStable))
}

func factories() (otelcol.Factories, error) {
	otlp, out := otlpreceiver.NewFactory(), linesFactory()
	return otelcol.Factories{
		Receivers: map[component.Type]receiver.Factory{otlp.Type(): otlp},
		Exporters: map[component.Type]exporter.Factory{out.Type(): out},
		Telemetry: otelconftelemetry.NewFactory(),
	}, nil
}

func main() {
	command := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "collector", Description: "the collector of the tests", Version: "0"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
			DefaultScheme:     "file",
		}},
	})
	if err := command.Execute(); err != nil {
		log.Fatal(err)
	}
}
