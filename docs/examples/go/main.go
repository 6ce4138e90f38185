// Continues a text on a kvmesh and prints the answer as it comes.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	kvmesh "kvmesh.example/client/kvmesh/v1"
)

func generate(router, prompt string) error {
	channel, err := grpc.NewClient(router, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer channel.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
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
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: generate ROUTER PROMPT")
		os.Exit(2)
	}
	if err := generate(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
