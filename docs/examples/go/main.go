// Continues a text on a kvmesh and prints the answer as it comes.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	kvmesh "kvmesh.example/client/kvmesh/v1"
)

func tlsCredentials(dir string) (credentials.TransportCredentials, error) {
	if dir == "" {
		return insecure.NewCredentials(), nil
	}
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in ca.crt")
	}
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{own},
		RootCAs:      roots,
		ServerName:   "router.kvmesh", // what a router's certificate is called, whatever its address
		MinVersion:   tls.VersionTLS13,
	}), nil
}

func generate(router, prompt, tlsDir, tokenFile string) error {
	creds, err := tlsCredentials(tlsDir)
	if err != nil {
		return err
	}
	channel, err := grpc.NewClient(router, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer channel.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if tokenFile != "" {
		token, err := os.ReadFile(tokenFile)
		if err != nil {
			return err
		}
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	answer, err := kvmesh.NewRouterServiceClient(channel).Generate(ctx, &kvmesh.GenerateRequest{
		Prompt:           &kvmesh.GenerateRequest_Text{Text: prompt},
		AddSpecialTokens: true,
		Options:          &kvmesh.GenerationOptions{MaxTokens: 32},
	})
	if err != nil {
		return err
	}
	for {
		event, err := answer.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Print(event.GetDelta().GetText())
		if usage := event.GetFinished().GetUsage(); usage != nil {
			fmt.Fprintf(os.Stderr, "\n%d tokens, %d of the prompt's %d from a checkpoint\n",
				usage.CompletionTokens, usage.CachedTokens, usage.PromptTokens)
		}
	}
}

func main() {
	tlsDir := flag.String("tls-dir", "", "folder with tls.crt, tls.key and ca.crt")
	tokenFile := flag.String("token-file", "", "file with the client's token")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate [--tls-dir DIR] [--token-file FILE] ROUTER PROMPT")
		os.Exit(2)
	}
	if err := generate(flag.Arg(0), flag.Arg(1), *tlsDir, *tokenFile); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
